//! `outbox relay`: delivers events, configured by flags or a settings file.
//!
//! | module | contents |
//! | --- | --- |
//! | `flags` | settings from flags, without a settings file |
//! | `daemon`, `signals`, `reload` | start, serve, reload the settings, stop |
//! | `source`, `discovery` | opens the databases and starts the relay |
//! | `publishers`, `json_lines`, `statistics` | the publishers |
//! | `routing_table` | routes events to publishers |
//! | `connectivity` | tests databases and publishers for `outbox check` |
//! | `health`, `http` | probes and metrics |
//! | `web`, `tls` | the API and the dashboard, and TLS |
//! | `serve`, `connections` | the HTTP server: connections, their limits and eviction |

mod connections;
pub(crate) mod connectivity;
mod daemon;
mod discovery;
mod flags;
mod health;
mod http;
mod json_lines;
mod publishers;
mod reload;
mod routing_table;
mod serve;
mod signals;
mod source;
mod statistics;
mod tls;
mod web;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use self::daemon::Plan;
pub(crate) use self::publishers::PublisherHealth;
use crate::Usage;
use crate::config::{Config, Time, probes_refusal};

/// Deliver events: by a settings file or, without one, as lines of JSON
///
/// Runs until SIGTERM or Ctrl-C, and then finishes the events in flight. SIGHUP reloads the
/// settings file. Log lines are written to standard error.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RelayArgs {
    /// The settings file; `outbox check --sample` prints one
    #[arg(long, short, value_name = "FILE", env = "OUTBOX_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: flags::Flags,

    /// Address for the dashboard, the API, /healthz, /readyz and /metrics, such as 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Second address for /healthz, /readyz and /metrics, without TLS and without a token, such as
    /// 127.0.0.1:9091
    #[arg(long, value_name = "ADDRESS")]
    probes_listen: Option<SocketAddr>,

    /// Serve probes and metrics without a token on an address that other machines can reach
    #[arg(long)]
    allow_remote: bool,

    /// How long to retry at start if the database cannot be reached, such as 30s
    #[arg(long, value_name = "TIME", env = "OUTBOX_WAIT", default_value = "0s")]
    wait: Time,
}

const EXAMPLES: &str = "\
Examples:
  outbox relay --config outbox.toml
  outbox relay --publish stdout | my-consumer          from DATABASE_URL
  outbox relay --database sqlite:shop.db --migrate --publish file:events.jsonl --completion delete
  outbox relay --publish stdout --mode log --topic audit

A line is written before its event counts as delivered, so after a crash some lines may be repeated: deduplicate by `id`.";

pub(crate) async fn run(options: RelayArgs, interactive: bool) -> Result<ExitCode> {
    let fallback_url = options.flags.database.clone();
    let (config, setting) = match &options.config {
        Some(file) => {
            options.flags.reject_beside_file()?;
            match Config::open(file, fallback_url.as_deref()) {
                Ok(config) => (config, "`url` of `[database]`"),
                Err(mistakes) => {
                    eprintln!("{mistakes}");
                    // Wrong usage: a restart cannot help.
                    return Ok(ExitCode::from(2));
                }
            }
        }
        None => (options.flags.config()?, "--database (or DATABASE_URL)"),
    };
    let allow_remote = options.allow_remote || config.http.allow_remote == Some(true);
    let listen = options.listen.or(config.http.listen.as_ref().map(|listen| *listen.get_ref()));
    if let Some(refusal) = listen.and_then(|listen| config.http.refusal(listen, allow_remote)) {
        return Err(Usage(refusal).into());
    }
    let from_file = || config.http.probes_listen.as_ref().map(|listen| *listen.get_ref());
    let probes_listen = options.probes_listen.or_else(from_file);
    if let Some(refusal) = probes_listen.and_then(|listen| probes_refusal(listen, allow_remote)) {
        return Err(Usage(refusal).into());
    }
    daemon::run(Plan {
        config,
        file: options.config,
        fallback_url,
        setting,
        listen,
        probes_listen,
        interactive,
        wait: options.wait.0,
    })
    .await
}
