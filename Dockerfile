# Heddle in a container: built as `make` does it, then only what the program needs to run.
#
#   docker build -t heddle .
#   docker run --rm heddle doctor
#   docker run --rm -v "$PWD:/work" heddle train run.toml
#
# With CUDA, from an image of Debian 12 that has the CUDA toolkit, cuDNN and NCCL (the finished image keeps their
# libraries, so BASE is used for both stages):
#
#   docker build -t heddle-cuda --build-arg BASE=IMAGE --build-arg CUDA=ON .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" heddle-cuda train run.toml --set run.device=cuda
ARG BASE=debian:12-slim

FROM ${BASE} AS build
# ON, OFF, or AUTO: where the toolkit is found.
ARG CUDA=OFF
WORKDIR /src
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends ca-certificates make python3-pip
# Packages are a layer of their own, which stays as it is when sources change.
COPY scripts/setup.sh scripts/setup.sh
RUN ./scripts/setup.sh
COPY . .
RUN make BUILD=/build CUDA=${CUDA}

FROM ${BASE}
COPY scripts/setup.sh /tmp/setup.sh
RUN /tmp/setup.sh --run && rm -rf /tmp/setup.sh /var/lib/apt/lists/*
# The part that speaks MPI lies beside the program and is opened when mpirun or srun starts it.
COPY --from=build /build/heddle /build/libheddle_mpi.so /usr/local/bin/
COPY examples /usr/local/share/heddle/examples
COPY configs /usr/local/share/heddle/configs
WORKDIR /work
ENTRYPOINT ["heddle"]
CMD ["--help"]
