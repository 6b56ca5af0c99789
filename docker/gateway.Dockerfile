# The gateway: the only service that clients talk to; beside it the REST front, which component rest runs. `make images` fills build/wheels and builds this; without it: docker build -f docker/gateway.Dockerfile .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
COPY build/wheels/gateway /wheels
RUN python3 -m venv /opt/fastserve \
 && /opt/fastserve/bin/pip install --no-index --no-cache-dir --no-compile --no-deps /wheels/*.whl \
 && /opt/fastserve/bin/pip uninstall --yes --quiet pip setuptools \
 && install /wheels/fastserve-rest /opt/fastserve/bin/fastserve-rest \
 && find /opt/fastserve -name __pycache__ -prune -exec rm -rf {} +
COPY docker/fastserve /opt/fastserve/bin/fastserve
COPY docker/bytecode.py /
RUN /opt/fastserve/bin/python /bytecode.py services.gateway.__main__

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/fastserve /opt/fastserve
COPY models/bundled /models/bundled
ENV PATH=/opt/fastserve/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /
ENTRYPOINT ["fastserve", "gateway"]
