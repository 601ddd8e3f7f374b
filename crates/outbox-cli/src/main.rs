//! The `outbox` command.
//!
//! | file | what it is |
//! | --- | --- |
//! | `demo` | `outbox demo`: a small shop that shows and checks what an outbox promises |
//! | `migrate` | `outbox migrate`: creates or upgrades the tables |
//! | `relay` | `outbox relay`: delivers events, as flags or a settings file say |
//! | `check` | `outbox check`: reads a settings file and says what it understood |
//! | `config` | the settings file |
//! | `send`, `events`, `dead`, `explain`, `purge`, `joins`, `log`, `status` | looking into an outbox, and repairing it |
//! | `databases` | `outbox databases`: several side by side |
//! | `completions` | `outbox completions`: for shells |
//! | `database`, `open` | the `--database` setting: which kind, how it may be shown, what its errors mean; opening it |
//! | `which`, `age` | flags that select events; times as people write them |
//! | `show`, `progress` | tables, JSON, colours; bars, and Ctrl-C |
//!
//! A new command is a file with its `Options` and a `run`, and its line in [`Command`].
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 3 for nothing found or nothing to do.

mod age;
mod check;
mod completions;
mod config;
mod database;
mod databases;
mod dead;
mod demo;
mod events;
mod explain;
mod joins;
mod log;
mod migrate;
mod open;
mod progress;
mod purge;
mod relay;
mod send;
mod show;
mod status;
mod which;

use std::fmt;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Transactional outbox: events in the transaction of your change, delivered at least once.
#[derive(Parser)]
#[command(name = "outbox", version, after_help = EXAMPLES)]
struct Cli {
    /// What to log to standard error: off, error, warn, info, debug, trace, or a filter such as `outbox=debug`
    #[arg(long, global = true, env = "OUTBOX_LOG", value_name = "LEVEL")]
    log: Option<String>,

    /// How log lines look
    #[arg(
        long,
        global = true,
        env = "OUTBOX_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    log_format: LogFormat,

    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo                                          see it work; leaves nothing behind
  outbox migrate --database postgres://ada@db/shop     create or upgrade the tables
  outbox relay --database sqlite:shop.db --publish stdout     deliver events, one JSON object a line
  outbox relay --config outbox.toml                    deliver events to brokers; see `outbox check --sample`
  outbox status --watch                                see how it is doing; DATABASE_URL says where
  outbox explain 01JD3V7Q0Z6W4T0M1S2K8N5R9X            why an event has not been delivered yet
  outbox dead list                                     what was given up, and why

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.
With --json answers are one JSON object a line. Colours are for terminals, and never with NO_COLOR.";

#[derive(Subcommand)]
enum Command {
    Check(check::Options),
    Demo(demo::Options),
    Migrate(migrate::Options),
    Relay(relay::Options),
    Send(send::Options),
    Status(status::Options),
    Events(events::Options),
    Dead(dead::Options),
    Explain(explain::Options),
    Purge(purge::Options),
    Joins(joins::Options),
    Log(log::Options),
    Databases(databases::Options),
    Completions(completions::Options),
}

/// The user asked for something that cannot be: exit code 2, with the usage of the command.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Check(_) => "check",
            Command::Demo(_) => "demo",
            Command::Migrate(_) => "migrate",
            Command::Relay(_) => "relay",
            Command::Send(_) => "send",
            Command::Status(_) => "status",
            Command::Events(_) => "events",
            Command::Dead(_) => "dead",
            Command::Explain(_) => "explain",
            Command::Purge(_) => "purge",
            Command::Joins(_) => "joins",
            Command::Log(_) => "log",
            Command::Databases(_) => "databases",
            Command::Completions(_) => "completions",
        }
    }

    /// What is logged unless `--log` says otherwise.
    fn log(&self) -> &'static str {
        match self {
            // Its handlers fail on purpose: those lines are for people who ask for them.
            Command::Demo(_) => "off",
            // Not a line for each event.
            Command::Relay(_) => "info,outbox::events=warn",
            _ => "warn",
        }
    }
}

/// There was nothing to find, or nothing to do.
pub(crate) fn nothing() -> ExitCode {
    ExitCode::from(3)
}

/// Prints a line. A reader that has gone away, as in `outbox … | head`, is not a failure of ours.
pub(crate) fn say(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let name = cli.command.name();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ran = runtime.block_on(run(cli));
    // Not longer: a reader of standard output that has stopped reading must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ran {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<Usage>() {
            Some(usage) => explain_usage(name, usage),
            None => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Says what is wrong as clap does, so that all wrong usage looks the same.
fn explain_usage(name: &str, usage: &Usage) -> ExitCode {
    let mut cli = Cli::command();
    cli.build();
    let mut command = cli.find_subcommand_mut(name).expect("every command is known to clap");
    let action = std::env::args().skip(1).find(|word| command.find_subcommand(word).is_some());
    if let Some(action) = action {
        command = command.find_subcommand_mut(action).expect("it was just found");
    }
    command.error(ErrorKind::InvalidValue, usage).exit()
}

async fn run(cli: Cli) -> Result<ExitCode> {
    log_to_stderr(cli.log.as_deref().unwrap_or(cli.command.log()), cli.log_format)?;
    match cli.command {
        Command::Check(options) => check::run(&options).await,
        Command::Demo(options) => demo::run(&options, cli.log.is_none()).await,
        Command::Migrate(options) => migrate::run(&options).await,
        Command::Relay(options) => relay::run(options, matches!(cli.log_format, LogFormat::Text)).await,
        Command::Send(options) => send::run(options).await,
        Command::Status(options) => status::run(options).await,
        Command::Events(options) => events::run(options).await,
        Command::Dead(options) => dead::run(options).await,
        Command::Explain(options) => explain::run(&options).await,
        Command::Purge(options) => purge::run(&options).await,
        Command::Joins(options) => joins::run(options).await,
        Command::Log(options) => log::run(options).await,
        Command::Databases(options) => databases::run(options).await,
        Command::Completions(options) => completions::run(&options, Cli::command()),
    }
}

/// Sends log lines to standard error.
fn log_to_stderr(filter: &str, format: LogFormat) -> Result<()> {
    let wrong = || {
        Usage(format!(
            "--log (or OUTBOX_LOG) is {filter:?}: use off, error, warn, info, debug or trace, \
             or a filter such as outbox=debug"
        ))
    };
    // A single word would pass as the name of a module, and log nothing.
    let is_word = !filter.contains(['=', ',']);
    if is_word && filter.parse::<LevelFilter>().is_err() {
        return Err(wrong().into());
    }
    let filter = EnvFilter::try_new(filter).map_err(|_| wrong())?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
