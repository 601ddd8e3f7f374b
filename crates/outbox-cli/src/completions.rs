//! `outbox completions`: prints shell completions.

use std::process::ExitCode;

use anyhow::Result;
use clap_complete::Shell;

/// Print a script for a shell that completes the commands and options of outbox
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  outbox completions bash > ~/.local/share/bash-completion/completions/outbox
  outbox completions zsh > ~/.zfunc/_outbox
  outbox completions fish > ~/.config/fish/completions/outbox.fish";

pub(crate) fn run(options: &CompletionsArgs, mut cli: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut cli, "outbox", &mut script);
    crate::print_escaped(String::from_utf8(script)?.trim_end());
    Ok(ExitCode::SUCCESS)
}
