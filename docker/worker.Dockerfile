# A worker. `make images` fills build/wheels and builds this; without it: docker build -f docker/worker.Dockerfile .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# `make images TORCH=mounted` leaves torch out, which is 4 GB: the pod then mounts a folder of packages at /opt/torch.
COPY build/wheels/worker /wheels
RUN python3 -m venv /opt/fastserve \
 && /opt/fastserve/bin/pip install --no-index --no-cache-dir --no-compile --no-deps /wheels/*.whl \
 && echo /opt/torch > "$(/opt/fastserve/bin/python -c 'import site; print(site.getsitepackages()[0])')/mounted_torch.pth" \
 && /opt/fastserve/bin/pip uninstall --yes --quiet pip setuptools \
 && find /opt/fastserve -name __pycache__ -prune -exec rm -rf {} +
COPY docker/fastserve /opt/fastserve/bin/fastserve
COPY docker/bytecode.py /
RUN /opt/fastserve/bin/python /bytecode.py numpy llguidance services.worker.__main__ services.worker.serving services.worker.build

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/fastserve /opt/fastserve
COPY models/bundled /models/bundled
ENV PATH=/opt/fastserve/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /
ENTRYPOINT ["fastserve", "worker"]
