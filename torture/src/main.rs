//! The command line of the torture test; `cargo xtask torture` builds and runs it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use torture::arena::{Arena, LEASE};
use torture::by_url;
use torture::database::TestDatabase;
use torture::faults::Fault;
use torture::report;
use torture::roles::{ProcessOptions, reader, relay, writer};
use torture::servers::{DatabaseKind, Disk, Pooler};
use torture::world::{self, Settings};

#[derive(Parser)]
#[command(about = "Runs real processes with real faults, records a history, and checks it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the torture test.
    Run(Run),
    /// Checks the histories of a folder again.
    Check {
        /// Such as target/torture/42/postgres.
        folder: PathBuf,
    },
    /// Runs one process of the torture test; used by the torture test itself.
    #[command(hide = true)]
    Process {
        role: Role,
        #[command(flatten)]
        options: ProcessOptions,
    },
}

/// A fault, or all of them.
#[derive(Clone, Debug)]
struct Faults(Vec<Fault>);

impl std::str::FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(if text == "all" { Fault::ALL.to_vec() } else { vec![text.parse()?] }))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    HotWriter,
    Writer,
    Relay,
    Reader,
}

#[derive(Args)]
struct Run {
    /// How long faults are injected, for each database.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Seed of the fault schedule; random if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// postgres, mariadb, sqlite, or all, one after another.
    #[arg(long, default_value = "postgres")]
    database: String,
    /// Faults to inject, such as kill-relay,cut; the default faults if not given, `all` for every
    /// one.
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<Faults>>,
    /// Arenas to run: multi, single, broker; all if not given.
    #[arg(long, value_delimiter = ',')]
    arenas: Option<Vec<Arena>>,
    /// Transactions per second of each writer; there are about four.
    #[arg(long, default_value_t = 25)]
    rate: u32,
    /// Duration of leases, in seconds. Use longer ones on a busy machine: a process that is not
    /// scheduled for so long is not excused.
    #[arg(long, default_value_t = LEASE.as_secs_f64())]
    lease: f64,
    /// Keep the histories of a run without violations as well.
    #[arg(long)]
    keep: bool,
    /// Folder for histories, with a subfolder for each seed.
    #[arg(long, default_value = "target/torture")]
    folder: PathBuf,
    /// The command `outbox`; the one beside this program if not given.
    #[arg(long)]
    outbox: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Run(run) => tokio::select! {
            done = torture(run) => done,
            () = interrupted() => {
                eprintln!("interrupted: all processes are stopped");
                Ok(ExitCode::from(130))
            }
        },
        Command::Check { folder } => check(&folder),
        Command::Process { role, options } => run_process(role, &options).await,
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

async fn interrupted() {
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

async fn run_process(role: Role, options: &ProcessOptions) -> Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::new("warn,outbox::events=off");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    async fn run_role<DB: TestDatabase>(role: Role, options: &ProcessOptions) -> Result<()> {
        match role {
            Role::HotWriter => writer::run::<DB>(options, true).await,
            Role::Writer => writer::run::<DB>(options, false).await,
            Role::Relay => relay::run::<DB>(options).await,
            Role::Reader => reader::run::<DB>(options).await,
        }
    }
    by_url!(options.database, run_role::<DB>(role, options))?;
    Ok(ExitCode::SUCCESS)
}

fn check(folder: &Path) -> Result<ExitCode> {
    let verdicts = world::check_folder(folder)?;
    let violations = report::violations(verdicts.values());
    print!("{violations}");
    let outcome = world::Outcome { verdicts, faults: Default::default(), damage: Vec::new() };
    println!("{}", report::table(&outcome));
    Ok(if outcome.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn torture(run: Run) -> Result<ExitCode> {
    let databases = match run.database.as_str() {
        "all" => DatabaseKind::ALL.to_vec(),
        one => vec![one.parse().map_err(anyhow::Error::msg)?],
    };
    let seed = run.seed.unwrap_or_else(|| rand::random_range(1..1_000_000));
    let (mut clean, mut damaged) = (true, false);
    for database in databases {
        let settings = settings(&run, database, seed)?;
        let folder = settings.folder.clone();
        header(&run, &settings);
        let outcome = world::run(settings).await?;
        if !outcome.damage.is_empty() {
            damaged = true;
            println!("\n{database}: THE DATABASE DAMAGED ITS OWN FILES; events may be lost with them:");
            outcome.damage.iter().for_each(|damage| println!("    {damage}"));
            println!("This run proves nothing about the outbox; the histories are in {}", folder.display());
        } else if outcome.is_clean() {
            println!("\n{database}: no violation");
        } else {
            clean = false;
            println!("\n{}", report::violations(outcome.verdicts.values()));
            println!("{database}: VIOLATIONS; the histories are in {}", folder.display());
        }
    }
    Ok(match (clean, damaged) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(3),
        (true, false) => ExitCode::SUCCESS,
    })
}

fn settings(run: &Run, database: DatabaseKind, seed: u64) -> Result<Settings> {
    let program = std::env::current_exe()?;
    let outbox = run.outbox.clone().unwrap_or_else(|| program.with_file_name("outbox"));
    let mut arenas = run.arenas.clone().unwrap_or_else(|| Arena::ALL.to_vec());
    if arenas.contains(&Arena::Broker) {
        if !outbox_testbed::Plan::nats().is_here() {
            println!("left out: the arena `broker`, because nats-server is not installed");
            arenas.retain(|arena| *arena != Arena::Broker);
        } else if !outbox.is_file() {
            bail!("{} not found: build it with `cargo build -p outbox-cli`", outbox.display());
        }
    }
    let mut faults: Vec<Fault> = match &run.faults {
        Some(faults) => faults.iter().flat_map(|Faults(some)| some.iter().copied()).collect(),
        None => Fault::ALL.into_iter().filter(|fault| fault.is_default()).collect(),
    };
    faults.retain(|fault| fault.applies_to(database));
    leave_out(
        &mut faults,
        Fault::Pooler,
        (!Pooler::is_installed()).then(|| "PgBouncer is not installed".to_owned()),
    );
    let faketime = faults.contains(&Fault::Clock).then(faketime).flatten();
    leave_out(
        &mut faults,
        Fault::Clock,
        faketime.is_none().then(|| "libfaketime is not installed".to_owned()),
    );
    if faults.contains(&Fault::Full) {
        leave_out(
            &mut faults,
            Fault::Full,
            Disk::is_possible().err().map(|error| format!("no tmpfs: {error:#}")),
        );
    }
    if !arenas.contains(&Arena::Single) {
        faults.retain(|fault| *fault != Fault::Leader);
    }
    if !arenas.contains(&Arena::Broker) {
        faults.retain(|fault| !matches!(fault, Fault::Outage | Fault::Receiver));
    }
    Ok(Settings {
        database,
        external: None,
        arenas,
        faults,
        seed,
        length: Duration::from_secs_f64(run.minutes * 60.0),
        rate: run.rate,
        lease: Duration::from_secs_f64(run.lease),
        slow: true,
        folder: std::path::absolute(run.folder.join(seed.to_string()).join(database.name()))?,
        keep: run.keep,
        program,
        outbox,
        faketime,
        verbose: true,
    })
}

fn leave_out(faults: &mut Vec<Fault>, fault: Fault, why: Option<String>) {
    if let Some(why) = why.filter(|_| faults.contains(&fault)) {
        println!("left out: the fault `{fault}`: {why}");
        faults.retain(|other| *other != fault);
    }
}

/// The path at which Debian installs libfaketime.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries.find(|library| library.is_file())
}

fn header(run: &Run, settings: &Settings) {
    let names = |faults: &[Fault]| faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(",");
    let arenas = settings.arenas.iter().map(|arena| arena.name()).collect::<Vec<_>>().join(",");
    println!("torture: {}, seed {}, {} min", settings.database, settings.seed, run.minutes);
    println!("  arenas  {arenas}");
    println!("  faults  {}", names(&settings.faults));
    println!(
        "  replay  cargo xtask torture --seed {} --minutes {} --database {} --arenas {arenas} --rate {} --lease {} \
         --faults {}",
        settings.seed,
        run.minutes,
        settings.database,
        run.rate,
        run.lease,
        names(&settings.faults)
    );
}
