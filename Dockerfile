# The locked run-time dependencies and Cacheway itself, in a virtual environment.
FROM python:3.12-slim AS installed
WORKDIR /src
RUN python -m venv /opt/cacheway
COPY requirements-runtime.lock pyproject.toml README.md LICENSE ./
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-runtime.lock
COPY radix radix
COPY policies policies
COPY router router
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/cacheway/bin/pip check \
 # The import names are generic: each must have exactly one owner in this image.
 && /opt/cacheway/bin/python -c "from importlib.metadata import packages_distributions as owners; \
wrong = {name: owners().get(name) for name in ('router', 'radix', 'policies') if owners().get(name) != ['cacheway']}; \
assert not wrong, wrong"

# The same without what only the build needs.
FROM installed AS build
RUN /opt/cacheway/bin/pip uninstall --yes hatchling editables pip

# The same with emulated engines and load tests, and what they need; nothing of it is in the gateway's image.
FROM installed AS build-loadtest
COPY requirements.lock ./
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY loadtest loadtest
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --no-build-isolation --force-reinstall . \
 && /opt/cacheway/bin/pip check \
 && /opt/cacheway/bin/python -c "from importlib.metadata import packages_distributions as owners; \
assert owners()['loadtest'] == ['cacheway'], owners()['loadtest']"

# docker build --target loadtest -t cacheway-loadtest:0.1.0 .
FROM python:3.12-slim AS loadtest
RUN useradd --system --uid 10001 --no-create-home cacheway
COPY --from=build-loadtest /opt/cacheway /opt/cacheway
COPY loadtest/locustfile.py /opt/loadtest/locustfile.py
ENV PATH=/opt/cacheway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp
USER 10001
ENTRYPOINT ["cacheway"]

# The gateway: the interpreter, the virtual environment, nobody's privileges.
FROM python:3.12-slim AS gateway
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
