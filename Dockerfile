# syntax=docker/dockerfile:1
# The daemon in one image: Python, a Java runtime, Spark, and ingestd for an unprivileged user.
#
#   docker build --tag ingestd .
#   docker run --read-only --tmpfs /tmp:exec --volume ./ingestd.yaml:/etc/ingestd/ingestd.yaml:ro ingestd
#
# The base needs Debian 12 and a python3 with venv. docs/deploy.md describes how to run the image.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Without hdfs and s3, the image cannot access tables there.
ARG EXTRAS=daemon,kerberos,hdfs,s3
# gssapi is compiled: it has no wheels for Linux.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libkrb5-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/ingestd
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY ingestd ingestd
# The tests of the libraries and the headers of Arrow are not needed.
RUN /opt/ingestd/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
    && /opt/ingestd/bin/pip uninstall --yes pip \
    && find /opt/ingestd/lib -path '*/site-packages/*' -type d \( -name tests -o -path '*/pyarrow/include' \) -prune \
       -exec rm -r {} +

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG UID=10001
LABEL org.opencontainers.image.title="ingestd" \
      org.opencontainers.image.description="Kafka records into Apache Hive ACID tables, exactly once" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# procps: Spark's scripts call ps. krb5-user: kinit and klist, to examine Kerberos problems.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
       krb5-user openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    # Hadoop requires that the user id has a name.
    && mkdir /etc/ingestd \
    && useradd --uid "${UID}" --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin ingestd
COPY --from=build /opt/ingestd /opt/ingestd
# The archive of Spark's classes belongs to root, and the daemon only reads it.
ENV PATH=/opt/ingestd/bin:$PATH \
    INGESTD_CACHE=/var/cache/ingestd \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    TMPDIR=/tmp
# Some builders cannot resolve the host name, which Spark looks up.
RUN SPARK_LOCAL_IP=127.0.0.1 ingestd prepare
USER ${UID}:${UID}
WORKDIR /tmp
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/livez', timeout=5)"]
# tini passes a signal to the daemon only. Spark's processes must not receive the first SIGTERM. Hive's cleaner removes
# deltas of ingestd, so the group of the warehouse must be able to write them.
ENTRYPOINT ["tini", "--", "sh", "-c", "umask 0002 && exec ingestd \"$@\"", "ingestd"]
CMD ["run", "--config", "/etc/ingestd/ingestd.yaml"]
