# An image of `punctual` with every command: one static program on Alpine, for a user without rights.
#
#   docker build -t punctual .
#   docker run -v jobs:/data punctual push hello '{}'
#   docker run -v jobs:/data punctual work --exec 'cat; echo'
#
# docs/operating/installing.md explains how to add your own handler. Alpine and not an empty image, since `work --exec` needs a shell.

ARG RUST=1.93
ARG ALPINE=3.22

FROM rust:${RUST}-alpine AS build
# The C compiler and the headers are for SQLite and ring.
RUN apk add --no-cache gcc musl-dev
WORKDIR /src
COPY . .
# Programs for musl are static by default.
RUN cargo build --locked --profile dist --package punctual-cli --features full && cp target/dist/punctual /punctual

FROM alpine:${ALPINE}
# The certificates are for rediss://, amqps:// and webhooks.
RUN apk add --no-cache ca-certificates-bundle \
    && adduser -D -H -u 10001 punctual \
    && install -d -o punctual -g punctual /data
COPY --from=build /punctual /usr/local/bin/punctual
USER punctual
WORKDIR /data
VOLUME /data
ENV PUNCTUAL_STORE=sqlite:/data/punctual.db
# `work` and `forward` report their health here.
ENV PUNCTUAL_HEALTH_ADDR=127.0.0.1:8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD wget -q -O /dev/null http://127.0.0.1:8080/
ENTRYPOINT ["punctual"]
CMD ["--help"]
