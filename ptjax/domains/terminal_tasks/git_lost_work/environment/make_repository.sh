set -e
export GIT_AUTHOR_DATE="2026-01-05T10:00:00Z" GIT_COMMITTER_DATE="2026-01-05T10:00:00Z"
git init -q -b main .
git config user.name "Ada" && git config user.email "ada@example.org"
printf 'apples 3\npears 4\nplums 5\n' > list.txt
git add . && git commit -q -m "List of the garden"
git checkout -q -b harvest
printf 'apples 3\npears 40\nplums 5\n' > list.txt
git commit -q -am "Pears are in"
printf 'basket A: pears\n' > baskets.txt
git add . && git commit -q -m "Baskets"
git checkout -q main
printf 'apples 3\npears 4, some bad\nplums 5\n' > list.txt
printf 'water on Mondays\n' > water.txt
git add . && git commit -q -m "Water"
git branch -q -D harvest
