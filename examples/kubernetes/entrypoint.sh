#!/bin/sh
# `executor` starts an executor from the environment that Spark sets, as Spark's own image does. Anything else is mzplan.
set -e
if [ "$1" != executor ]; then exec mzplan "$@"; fi
jars=$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
options=$(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p' | tr '\n' ' ')
# shellcheck disable=SC2086  # each option is a word
exec java $options "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_CLASSPATH:$jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
