//! `outbox relay`: delivers events, as flags or a settings file say.
//!
//! | file | what it is |
//! | --- | --- |
//! | `flags` | a relay without a settings file |
//! | `daemon`, `signals`, `reload` | start, serve, read the settings again, stop |
//! | `source`, `discovery` | the databases, and the relay on them |
//! | `outlets`, `lines`, `counting` | the publishers |
//! | `table` | which event goes to which of them |
//! | `reach` | trying all of that, for `outbox check` |
//! | `health`, `http` | probes and metrics |
//! | `web`, `tls` | the API and the dashboard, and how connections are encrypted |
//! | `serve`, `places` | connections, and which of them gives way to a new one |

mod counting;
mod daemon;
mod discovery;
mod flags;
mod health;
mod http;
mod lines;
mod outlets;
mod places;
pub(crate) mod reach;
mod reload;
mod serve;
mod signals;
mod source;
mod table;
mod tls;
mod web;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use self::daemon::Plan;
pub(crate) use self::outlets::Asked;
use crate::Usage;
use crate::config::{Config, Time, probes_refusal};

/// Deliver events, as a settings file says or, without one, each as one JSON object on a line
///
/// Runs until it is told to stop by SIGTERM or Ctrl-C; then it finishes what it has in hand. SIGHUP has it read the settings
/// file again. Its own log lines go to standard error.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The settings file; `outbox check --sample` prints one
    #[arg(long, short, value_name = "FILE", env = "OUTBOX_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: flags::Flags,

    /// Serve the dashboard, the API, /healthz, /readyz and /metrics there, such as 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Serve /healthz, /readyz and /metrics there as well, without TLS and without a token, such as 127.0.0.1:9091
    #[arg(long, value_name = "ADDRESS")]
    probes_listen: Option<SocketAddr>,

    /// Serve probes and metrics without a token on an address that other machines can reach
    #[arg(long)]
    allow_remote: bool,

    /// How long to try to reach a database that is not there at first, such as 30s
    #[arg(long, value_name = "TIME", env = "OUTBOX_WAIT", default_value = "0s")]
    wait: Time,
}

const EXAMPLES: &str = "\
Examples:
  outbox relay --config outbox.toml
  outbox relay --publish stdout | my-consumer          DATABASE_URL says where
  outbox relay --database sqlite:shop.db --migrate --publish file:events.jsonl --completion delete
  outbox relay --publish stdout --mode log --topic audit

A line is out before its event counts as delivered, so after a crash some may come twice: tell them apart by `id`.";

pub(crate) async fn run(options: Options, to_people: bool) -> Result<ExitCode> {
    let otherwise = options.flags.database.clone();
    let (config, setting) = match &options.config {
        Some(file) => {
            options.flags.refuse()?;
            match Config::open(file, otherwise.as_deref()) {
                Ok(config) => (config, "`url` of `[database]`"),
                Err(mistakes) => {
                    eprintln!("{mistakes}");
                    // Wrong usage, which a restart does not mend.
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
    let of_file = || config.http.probes_listen.as_ref().map(|listen| *listen.get_ref());
    let probes_listen = options.probes_listen.or_else(of_file);
    if let Some(refusal) = probes_listen.and_then(|listen| probes_refusal(listen, allow_remote)) {
        return Err(Usage(refusal).into());
    }
    daemon::run(Plan {
        config,
        file: options.config,
        otherwise,
        setting,
        listen,
        probes_listen,
        to_people,
        wait: options.wait.0,
    })
    .await
}
