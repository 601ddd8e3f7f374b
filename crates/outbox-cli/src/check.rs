//! `outbox check`: validates a settings file, and prints a summary or the mistakes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use crate::config::{Config, SAMPLE};
use crate::relay::{PublisherHealth, connectivity};
use crate::{Usage, print_escaped};

/// Check a settings file, and print a summary of it
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// The settings file
    #[arg(long, short, value_name = "FILE", env = "OUTBOX_CONFIG")]
    config: Option<PathBuf>,

    /// Also connect to the databases and the publishers
    #[arg(long)]
    connect: bool,

    /// Print a settings file with every setting, its default and its purpose
    #[arg(long)]
    sample: bool,

    /// The database, if the file names none
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = outbox::settings::file::url_or_file)]
    database: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  outbox check --sample > outbox.toml
  outbox check --config outbox.toml
  outbox check --config outbox.toml --connect

Exit code 0 without mistakes, 1 otherwise. Warnings are printed to standard error.";

pub(crate) async fn run(options: &CheckArgs) -> Result<ExitCode> {
    if options.sample {
        print_escaped(SAMPLE.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(file) = &options.config else {
        return Err(Usage("name a settings file with --config, or print one with --sample".to_owned()).into());
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
    print_escaped(format_args!("{}: good\n", file.display()));
    for (name, lines) in config.summary() {
        for (number, line) in lines.iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            print_escaped(format_args!("{name:<14} {line}"));
        }
    }
}

/// Connects to all databases and publishers. Returns whether all are available.
async fn connect(config: &Config) -> Result<bool> {
    print_escaped("");
    let mut all = true;
    for (name, tried) in connectivity::databases(config).await {
        all &= tried.is_ok();
        match tried {
            Ok(description) => print_escaped(format_args!("{name}: {description}")),
            Err(error) => print_escaped(format_args!("{name}: {error:#}")),
        }
    }
    for PublisherHealth { name, kind, health } in connectivity::publishers(config, &Arc::default()).await? {
        all &= health.is_ok();
        match health {
            Ok(()) => print_escaped(format_args!("publisher {name} ({kind}): available")),
            Err(reason) => print_escaped(format_args!("publisher {name} ({kind}): not available: {reason}")),
        }
    }
    Ok(all)
}
