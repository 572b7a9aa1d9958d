# What the repository says of itself; git reads configuration and hooks there, so not in test.sh.
cd /app/notes || exit 1
git rev-parse --abbrev-ref HEAD > /logs/run/head
git log --format=%s harvest -- > /logs/run/harvest
git merge-base --is-ancestor harvest main && echo yes > /logs/run/merged
git status --porcelain > /logs/run/status
git log --format=%s main | sort | head -20 > /logs/run/main
for file in list.txt baskets.txt water.txt; do git show "main:$file"; done > /logs/run/files
