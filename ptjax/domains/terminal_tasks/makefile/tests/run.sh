# Builds, and builds again; what it sees goes to files that the tests read.
cd /app
out=/logs/run
sha256sum main.c shapes.c shapes.h > $out/sources
make clean > /dev/null 2>&1
make > $out/first 2>&1; echo $? > $out/first_status
./area 2 > $out/area
# Times are set, for clocks of files may be coarse: sources are an hour old, what is built a minute.
old() { touch -d '-1 minute' -- *; touch -d '-1 hour' -- *.c *.h; }
old; make -q; echo $? > $out/second_status
rebuilt() {
  old
  touch -d '-10 seconds' "$1"
  make > /dev/null 2>&1
  echo $?
  for file in main.o shapes.o area; do [ "$file" -nt "$1" ] && echo "$file"; done
}
rebuilt main.c > $out/main
rebuilt shapes.c > $out/shapes
rebuilt shapes.h > $out/header
touch clean; make clean > /dev/null 2>&1; make clean > /dev/null 2>&1; echo $? > $out/clean_status
rm -f clean
printf '%s\n' * > $out/left
