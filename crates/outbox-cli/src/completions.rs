//! `outbox completions`: what makes a shell complete our commands.

use std::process::ExitCode;

use anyhow::Result;
use clap_complete::Shell;

/// Print what makes a shell complete the commands and options of outbox
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  outbox completions bash > ~/.local/share/bash-completion/completions/outbox
  outbox completions zsh > ~/.zfunc/_outbox
  outbox completions fish > ~/.config/fish/completions/outbox.fish";

pub(crate) fn run(options: &Options, mut cli: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut cli, "outbox", &mut script);
    crate::say(String::from_utf8(script)?.trim_end());
    Ok(ExitCode::SUCCESS)
}
