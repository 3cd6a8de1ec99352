#!/usr/bin/env bash
# A Kafka broker of one node (KRaft), on loopback. It runs until it is killed, and keeps its log in DATA.
# usage: kafka.sh JARS DATA PORT; PORT + 1 is its controller's
set -euo pipefail
jars=$1 data=$2 port=$3
java_() { java -Xmx400m -XX:+UseSerialGC -cp "$jars/*" "$@"; }
mkdir -p "$data"
cat > "$data/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$data/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
num.network.threads=1
num.io.threads=2
PROPERTIES
if [ ! -d "$data/log" ]; then
  java_ kafka.tools.StorageTool format -t "$(java_ kafka.tools.StorageTool random-uuid)" -c "$data/server.properties"
fi
exec java -Xmx400m -XX:+UseSerialGC -cp "$jars/*" kafka.Kafka "$data/server.properties"
