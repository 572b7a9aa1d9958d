# Calls the script in several ways, and writes down what it says and leaves.
number=0
ask() {
  number=$((number + 1))
  rm -rf "/app/case $number"; mkdir -p "/app/case $number/sub"
  cd "/app/case $number"
  touch backup-2026-0{1,2}-0{1,2,3}.tar.gz backup-2025-12-31.tar.gz sub/backup-2025-01-02.tar.gz \
    backup-2026-01-04.tar backup-26-01-05.tar.gz notes.txt
  mkdir backup-2025-11-11.tar.gz
  { bash /app/rotate.sh "$@"; echo "status $?"; } > "/logs/run/$number.out" 2> "/logs/run/$number.err"
  shopt -s globstar
  printf '%s\n' ** > "/logs/run/$number.left"
}
ask 2 "/app/case 1"
ask -n 2 "/app/case 2"
ask 0 .
ask 100 .
ask 08 .
ask
ask 2
ask -1 .
ask 1.5 .
ask 2 "/app/case 10/notes.txt"
ask 2 . .
