#!/bin/sh
# Runs rustdoc with unstable options allowed; `cargo xtask api` passes this file to cargo as RUSTDOC.
# RUSTC_BOOTSTRAP must not be set for cargo itself: the build scripts of proc-macro2, anyhow and
# thiserror watch it, so that every crate that uses a derive macro would be built again, twice.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
