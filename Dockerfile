# A pinned base: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim

# The locked run-time dependencies and Cacheway itself, in a virtual environment.
FROM ${BASE} AS installed
WORKDIR /src
RUN python -m venv /opt/cacheway
COPY requirements-runtime.lock pyproject.toml hatch_build.py README.md LICENSE ./
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-runtime.lock
COPY cacheway cacheway
COPY radix radix
COPY policies policies
COPY router router
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/cacheway/bin/pip check

# The same without the build's tools.
FROM installed AS build
RUN /opt/cacheway/bin/pip uninstall --yes hatchling editables pip

# The same with emulated engines and load tests, and what they need; nothing of it is in the gateway's image.
FROM installed AS build-loadtest
COPY requirements.lock ./
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY loadtest loadtest
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --no-build-isolation --force-reinstall . \
 && /opt/cacheway/bin/pip check
# Where manifests look for it.
RUN mkdir /opt/loadtest && cp /opt/cacheway/lib/python3.*/site-packages/cacheway/loadtest/locustfile.py /opt/loadtest/

# docker build --target loadtest -t cacheway-loadtest:0.1.0 .
FROM ${BASE} AS loadtest
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Cacheway load tests" \
      org.opencontainers.image.description="Emulated engines and load tests for Cacheway" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --system --uid 10001 --no-create-home cacheway
COPY --from=build-loadtest /opt/cacheway /opt/cacheway
COPY --from=build-loadtest /opt/loadtest /opt/loadtest
ENV PATH=/opt/cacheway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp
USER 10001
ENTRYPOINT ["cacheway"]

# The gateway: the interpreter and the virtual environment, as an unprivileged user.
FROM ${BASE} AS gateway
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Cacheway" \
      org.opencontainers.image.description="A cache-affinity gateway for LLM fleets" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --system --uid 10001 --no-create-home cacheway
COPY --from=build /opt/cacheway /opt/cacheway
ENV PATH=/opt/cacheway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
# Requests, metrics (--prometheus-port), the admin API.
EXPOSE 30000 29000 29100
# Of a gateway that serves plain HTTP on its usual port; orchestrators have probes of their own.
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/liveness', timeout=2)"]
ENTRYPOINT ["cacheway"]
CMD ["serve", "--host", "0.0.0.0"]
