#!/bin/bash
# trial-secrets.sh [DIRECTORY] [HOST...]: the files that compose needs, to try it on one machine for 30 days.
#
# DIRECTORY (default: secrets) gets a self-signed certificate for the hosts (default: localhost) and its key, the public
# key that verifies tokens, Grafana's password, and one token for a client. In production, an authority issues the
# certificate, and an identity provider the tokens.
set -euo pipefail
directory=${1:-secrets}
if [[ $directory == -* || -e $directory ]]; then
    echo "usage: trial-secrets.sh [DIRECTORY] [HOST...]; DIRECTORY ($directory) must be new" >&2
    exit 2
fi
hosts=("${@:2}")
[ ${#hosts[@]} -gt 0 ] || hosts=(localhost)

# The containers' users read the files; on this machine, the folder keeps others out.
mkdir -m 700 "$directory"
cd "$directory"

names=$(printf ',DNS:%s' "${hosts[@]}")
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=${hosts[0]}" \
    -addext "subjectAltName=${names#,}" -keyout key.pem -out certificate.pem 2> /dev/null
openssl rand -hex 16 > grafana_password

base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
openssl genrsa -out signing.pem 2048 2> /dev/null
modulus=$(openssl rsa -in signing.pem -noout -modulus | sed 's/^Modulus=//; s/../\\x&/g')
printf '{"keys": [{"kty": "RSA", "kid": "trial", "alg": "RS256", "use": "sig", "e": "AQAB", "n": "%s"}]}\n' \
    "$(printf '%b' "$modulus" | base64url)" > jwks.json
header=$(printf '{"alg": "RS256", "kid": "trial"}' | base64url)
ends=$(($(date +%s) + 30 * 86400))
claims=$(printf '{"iss": "clip-operator", "aud": "clip", "sub": "trial", "exp": %s}' $ends | base64url)
signature=$(printf '%s' "$header.$claims" | openssl dgst -sha256 -sign signing.pem | base64url)
printf '%s\n' "$header.$claims.$signature" > token
rm signing.pem
chmod 644 certificate.pem key.pem jwks.json grafana_password
chmod 600 token
printf 'wrote %s; compose reads secrets/: docker compose -f containers/compose.yaml up --build\n' "$PWD"
printf 'a client: ClipClient(config=ClientConfig(urls=("grpcs://%s:8443",), token=TOKEN, ' "${hosts[0]}"
printf 'ca_certificate="%s/certificate.pem"))\n' "$PWD"
printf 'TOKEN is the line in %s/token\n' "$PWD"
