//! `outbox check`: reads a settings file, and says what it understood or what is wrong.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use crate::config::{Config, SAMPLE};
use crate::relay::{PublisherHealth, connectivity};
use crate::{Usage, say};

/// Check a settings file, and show what it means
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The settings file
    #[arg(long, short, value_name = "FILE", env = "OUTBOX_CONFIG")]
    config: Option<PathBuf>,

    /// Try the databases and the publishers too
    #[arg(long)]
    connect: bool,

    /// Print a settings file with every setting, its default and what it is for
    #[arg(long)]
    sample: bool,

    /// The database if the file names none
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = outbox::settings::file::url_or_file)]
    database: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  outbox check --sample > outbox.toml
  outbox check --config outbox.toml
  outbox check --config outbox.toml --connect

Exit code 0 if all is well, 1 if something is wrong. Warnings are on standard error.";

pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    if options.sample {
        say(SAMPLE.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(file) = &options.config else {
        return Err(
            Usage("name a settings file with --config, or ask for one with --sample".to_owned()).into()
        );
    };
    let config = match Config::open(file, options.database.as_deref()) {
        Ok(config) => config,
        Err(mistakes) => {
            eprintln!("{mistakes}");
            return Ok(ExitCode::FAILURE);
        }
    };
    for warning in &config.warnings {
        eprintln!("warning: {}", warning.in_file(&file.display().to_string()));
    }
    show(file, &config);
    if options.connect && !connect(&config).await? {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(file: &Path, config: &Config) {
    say(format_args!("{}: good\n", file.display()));
    for (name, lines) in config.summary() {
        for (number, line) in lines.iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            say(format_args!("{name:<14} {line}"));
        }
    }
}

/// Tries everything. Returns whether all of it is there.
async fn connect(config: &Config) -> Result<bool> {
    say("");
    let mut all = true;
    for (what, tried) in connectivity::databases(config).await {
        all &= tried.is_ok();
        match tried {
            Ok(said) => say(format_args!("{what}: {said}")),
            Err(error) => say(format_args!("{what}: {error:#}")),
        }
    }
    for PublisherHealth { name, kind, health } in connectivity::publishers(config, &Arc::default()).await? {
        all &= health.is_ok();
        match health {
            Ok(()) => say(format_args!("publisher {name} ({kind}): available")),
            Err(reason) => say(format_args!("publisher {name} ({kind}): not available: {reason}")),
        }
    }
    Ok(all)
}
