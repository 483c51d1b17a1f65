# Build stage: the locked run-time dependencies and Cacheway itself, in a virtual environment.
FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/cacheway
COPY requirements-runtime.lock pyproject.toml README.md LICENSE ./
RUN /opt/cacheway/bin/pip install --no-cache-dir --require-hashes -r requirements-runtime.lock
COPY radix radix
COPY policies policies
COPY router router
COPY loadtest loadtest
RUN /opt/cacheway/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 # The import names are generic: each must have exactly one owner in this image.
 && /opt/cacheway/bin/python -c "from importlib.metadata import packages_distributions as owners; \
wrong = {name: owners().get(name) for name in ('router', 'radix', 'policies', 'loadtest') if owners().get(name) != ['cacheway']}; \
assert not wrong, wrong" \
 && /opt/cacheway/bin/pip uninstall --yes hatchling editables pip

# Final stage: the interpreter, the virtual environment, nobody's privileges.
FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home cacheway
COPY --from=build /opt/cacheway /opt/cacheway
ENV PATH=/opt/cacheway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/liveness', timeout=2)"]
ENTRYPOINT ["cacheway"]
CMD ["serve", "--host", "0.0.0.0"]
