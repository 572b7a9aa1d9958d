#!/bin/bash
set -e
cat > /app/rotate.sh <<'SH'
#!/bin/bash
fail() { echo "rotate: $1" >&2; exit 2; }
dry=
[ "$1" = -n ] && { dry=1; shift; }
[ $# -eq 2 ] || fail "usage: rotate.sh [-n] KEEP DIRECTORY"
[[ $1 =~ ^[0-9]+$ ]] || fail "KEEP must be a whole number, got $1"
[ -d "$2" ] || fail "$2 is no directory"
cd -- "$2" || fail "cannot enter $2"
names=()
for name in backup-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].tar.gz; do
  [ -f "$name" ] && names+=("$name")
done
last=$(( ${#names[@]} - 10#$1 ))
for (( i = 0; i < last; i++ )); do
  name=${names[i]}
  [[ $name == *-01.tar.gz ]] && continue
  if [ "$dry" ]; then echo "would delete $name"; else rm -- "$name" && echo "deleted $name"; fi
done
exit 0
SH
