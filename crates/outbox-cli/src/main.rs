//! The `outbox` command.
//!
//! | module | contents |
//! | --- | --- |
//! | `demo` | `outbox demo`: a small shop that demonstrates and verifies the guarantees of an outbox |
//! | `migrate` | `outbox migrate`: creates or upgrades the tables |
//! | `relay` | `outbox relay`: delivers events, configured by flags or a settings file |
//! | `check` | `outbox check`: validates a settings file and prints a summary of it |
//! | `config` | the settings file |
//! | `send`, `events`, `dead`, `explain`, `purge`, `joins`, `nodes`, `log`, `status` | inspection and repair of an outbox |
//! | `databases` | `outbox databases`: the state of several databases |
//! | `completions` | `outbox completions`: shell completions |
//! | `logging` | log lines on standard error: one safe line per log event |
//! | `database`, `target` | the `--database` setting: its kind, its display without secrets, hints for its errors; opening it |
//! | `audit` | audit entries, written before a change, with the operating system's user |
//! | `selector`, `time_args` | flags that select events; times and rates as arguments |
//! | `output`, `progress` | tables, JSON, colours; progress bars and Ctrl-C |
//!
//! A new command is a module with an argument struct and a `run` function, and a variant of
//! [`Command`].
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 3 for nothing found or nothing to
//! do.

mod audit;
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
mod logging;
mod migrate;
mod nodes;
mod output;
mod progress;
mod purge;
mod relay;
mod selector;
mod send;
mod status;
mod target;
mod time_args;

use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use outbox::escape::escape_lines;

/// Transactional outbox: events in the transaction of your change, delivered at least once.
#[derive(Parser)]
#[command(name = "outbox", version, after_help = EXAMPLES)]
struct Cli {
    /// Log level for standard error: off, error, warn, info, debug, trace, or a filter such as
    /// `outbox=debug`
    #[arg(long, global = true, env = "OUTBOX_LOG", value_name = "LEVEL")]
    log: Option<String>,

    /// Format of log lines
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
    /// Plain text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo                                          run a demonstration; leaves nothing behind
  outbox migrate                                       create or upgrade the tables in DATABASE_URL
  outbox relay --database sqlite:shop.db --publish stdout     deliver events, one JSON object per line
  outbox relay --config outbox.toml                    deliver events to brokers; see `outbox check --sample`
  outbox status --watch                                show backlog, rates and relays
  outbox explain 01JD3V7Q0Z6W4T0M1S2K8N5R9X            why an event has not been delivered yet
  outbox dead list                                     dead-lettered events and their errors

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 nothing found or nothing to do.
With --json, output is one JSON object per line. Colours are used on terminals only, and never with NO_COLOR.";

#[derive(Subcommand)]
enum Command {
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Migrate(migrate::MigrateArgs),
    Relay(relay::RelayArgs),
    Send(send::SendArgs),
    Status(status::StatusArgs),
    Events(events::EventsArgs),
    Dead(dead::DeadArgs),
    Explain(explain::ExplainArgs),
    Purge(purge::PurgeArgs),
    Joins(joins::JoinsArgs),
    Nodes(nodes::NodesArgs),
    Log(log::LogArgs),
    Databases(databases::DatabasesArgs),
    Completions(completions::CompletionsArgs),
}

/// Wrong usage of a command: exit code 2, printed with the usage of the command.
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
            Command::Nodes(_) => "nodes",
            Command::Log(_) => "log",
            Command::Databases(_) => "databases",
            Command::Completions(_) => "completions",
        }
    }

    /// Default log filter, used without `--log`.
    fn log(&self) -> &'static str {
        match self {
            // The demo's handlers fail on purpose: their errors are logged only on request.
            Command::Demo(_) => "off",
            // Without a line per event.
            Command::Relay(_) => "info,outbox::events=warn",
            _ => "warn",
        }
    }
}

/// Exit code 3: nothing found, or nothing to do.
pub(crate) fn exit_nothing() -> ExitCode {
    ExitCode::from(3)
}

/// Prints lines to standard output with unsafe characters escaped, because they may contain text
/// from rows. A closed pipe, as in `outbox … | head`, is not an error.
pub(crate) fn print_escaped(text: impl fmt::Display) {
    print_raw(escape_lines(&text.to_string()));
}

/// Prints output that is already escaped: tables with colours, JSON.
pub(crate) fn print_raw(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints lines to standard error with unsafe characters escaped, like [`print_escaped`].
pub(crate) fn eprint_escaped(text: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", escape_lines(&text.to_string()));
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
    let result = runtime.block_on(run(cli));
    // Bounded: a reader of standard output that has stopped reading must not keep the process
    // alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    exit_code(name, result)
}

/// Returns the exit code, and prints an error to standard error.
fn exit_code(name: &str, result: Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<Usage>() {
            Some(usage) => exit_with_usage(name, usage),
            None => {
                eprint_escaped(format_args!("error: {error:#}"));
                ExitCode::FAILURE
            }
        },
    }
}

/// Reports wrong usage through clap, so that all usage errors have the same format, and exits.
fn exit_with_usage(name: &str, usage: &Usage) -> ExitCode {
    let mut cli = Cli::command();
    cli.build();
    let mut command = cli.find_subcommand_mut(name).expect("every command is known to clap");
    let action = arguments().skip(1).find(|word| command.find_subcommand(word).is_some());
    if let Some(action) = action {
        command = command.find_subcommand_mut(action).expect("it was just found");
    }
    command.error(ErrorKind::InvalidValue, usage).exit()
}

/// Arguments of the command line, lossily decoded: `std::env::args` panics on a path that is not
/// UTF-8.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())
}

/// Warns about a database password in the arguments: every user of the machine can read the command
/// lines of all processes.
fn warn_of_passwords(arguments: impl IntoIterator<Item = String>) {
    if arguments.into_iter().any(|argument| database::has_password(&argument)) {
        tracing::warn!(
            "a database password is on the command line, where every user of this machine can read it: set DATABASE_URL or \
             use a settings file instead"
        );
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    logging::to_stderr(cli.log.as_deref().unwrap_or(cli.command.log()), cli.log_format)?;
    warn_of_passwords(arguments());
    match cli.command {
        Command::Check(options) => check::run(&options).await,
        Command::Demo(options) => demo::run(&options, cli.log.is_none()).await,
        Command::Migrate(options) => migrate::run(&options).await,
        Command::Relay(options) => {
            // Anything but a terminal may store its input: a journal, a file, a container's log. No
            // secret is printed there.
            let interactive = matches!(cli.log_format, LogFormat::Text) && std::io::stderr().is_terminal();
            relay::run(options, interactive).await
        }
        Command::Send(options) => send::run(options).await,
        Command::Status(options) => status::run(options).await,
        Command::Events(options) => events::run(options).await,
        Command::Dead(options) => dead::run(options).await,
        Command::Explain(options) => explain::run(&options).await,
        Command::Purge(options) => purge::run(&options).await,
        Command::Joins(options) => joins::run(options).await,
        Command::Nodes(options) => nodes::run(options).await,
        Command::Log(options) => log::run(options).await,
        Command::Databases(options) => databases::run(options).await,
        Command::Completions(options) => completions::run(&options, Cli::command()),
    }
}
