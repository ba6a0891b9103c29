# docker build -t tessera .
# docker run --rm -v "$PWD:/work" tessera compare FILE --out out
FROM debian:12 AS build
WORKDIR /src
COPY . .
RUN bash -c '. experiments/setup.sh && tsr_setup \
    && tsr_configure release -DTESSERA_TESTS=OFF -DTESSERA_CUDA_ARCHITECTURES=ALL \
    && tsr_build build \
    && cd build && cpack -G DEB'

FROM debian:12
COPY --from=build /src/build/*.deb /tmp/
RUN apt-get update && apt-get install -y /tmp/*.deb && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["tessera"]
CMD ["--help"]
