//! The `outbox` command.
//!
//! | file | what it is |
//! | --- | --- |
//! | `demo` | `outbox demo`: a small shop that shows and checks what an outbox promises |
//! | `migrate` | `outbox migrate`: creates or upgrades the tables |
//! | `relay` | `outbox relay`: delivers events, as flags or a settings file say |
//! | `check` | `outbox check`: reads a settings file and says what it understood |
//! | `config` | the settings file |
//! | `send`, `events`, `dead`, `explain`, `purge`, `joins`, `nodes`, `log`, `status` | looking into an outbox, and repairing it |
//! | `databases` | `outbox databases`: several side by side |
//! | `completions` | `outbox completions`: for shells |
//! | `logging` | log lines on standard error: one line each, whatever rows hold |
//! | `database`, `open` | the `--database` setting: which kind, how it may be shown, what its errors mean; opening it |
//! | `audit` | changes are noted before they are made, with the user of the operating system |
//! | `which`, `age` | flags that select events; times as people write them |
//! | `show`, `progress` | tables, JSON, colours; bars, and Ctrl-C |
//!
//! A new command is a file with its `Options` and a `run`, and its line in [`Command`].
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 3 for nothing found or nothing to do.

mod age;
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
mod open;
mod progress;
mod purge;
mod relay;
mod send;
mod show;
mod status;
mod which;

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
  outbox migrate                                       create or upgrade the tables; DATABASE_URL says where
  outbox relay --database sqlite:shop.db --publish stdout     deliver events, one JSON object a line
  outbox relay --config outbox.toml                    deliver events to brokers; see `outbox check --sample`
  outbox status --watch                                see how it is doing
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
    Nodes(nodes::Options),
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
            Command::Nodes(_) => "nodes",
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

/// Prints lines of text, which may hold texts from rows: unsafe characters are escaped. A reader that has gone away, as in
/// `outbox … | head`, is not a failure of ours.
pub(crate) fn say(text: impl fmt::Display) {
    say_as_is(escape_lines(&text.to_string()));
}

/// Prints what is safe already: tables with their colours, JSON.
pub(crate) fn say_as_is(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints lines of text to standard error, as [`say`] does to standard output.
pub(crate) fn note(text: impl fmt::Display) {
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
    let ran = runtime.block_on(run(cli));
    // Not longer: a reader of standard output that has stopped reading must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    conclude(name, ran)
}

/// The exit code. An error is told on standard error.
fn conclude(name: &str, ran: Result<ExitCode>) -> ExitCode {
    match ran {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<Usage>() {
            Some(usage) => explain_usage(name, usage),
            None => {
                note(format_args!("error: {error:#}"));
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
    let action = arguments().skip(1).find(|word| command.find_subcommand(word).is_some());
    if let Some(action) = action {
        command = command.find_subcommand_mut(action).expect("it was just found");
    }
    command.error(ErrorKind::InvalidValue, usage).exit()
}

/// The words of the command line. A path may be no UTF-8, at which `std::env::args` panics.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())
}

/// Every user of the machine sees the command lines of all processes.
fn warn_of_passwords(arguments: impl IntoIterator<Item = String>) {
    if arguments.into_iter().any(|argument| database::has_password(&argument)) {
        tracing::warn!(
            "a database password is on the command line, where every user of this machine sees it: set DATABASE_URL or use \
             a settings file instead"
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
            // What is not a terminal keeps what it is told for long: a journal, a file, a container's log.
            let to_people = matches!(cli.log_format, LogFormat::Text) && std::io::stderr().is_terminal();
            relay::run(options, to_people).await
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
