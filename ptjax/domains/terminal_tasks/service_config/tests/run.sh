# Starts the service, asks it, and writes down the answers.
cd /
python3 /app/service.py /app/service.ini > /logs/run/log 2>&1 &
for _ in $(seq 50); do [ -S /app/run/service.sock ] && break; sleep 0.1; done
ask() { curl -s -m 5 --unix-socket /app/run/service.sock -w '%{http_code}\n' "$@"; }
{
  ask http://localhost/health
  ask http://localhost/items
  ask -o /dev/null http://localhost/admin
  ask -o /dev/null -H 'X-Token: wrong' http://localhost/admin
  ask -H "X-Token: willow-417" http://localhost/admin
} > /logs/run/answers
python3 -I -c 'import os; print(oct(os.stat("/app/data/token").st_mode & 0o077))' > /logs/run/mode
