//! `weir completions`: prints shell completion scripts.

use crate::failure::{Exit, Outcome};
use crate::show;
use clap::CommandFactory;

/// Print shell completions
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish")]
pub struct Args {
    /// The shell for which to print the completion script
    shell: clap_complete::Shell,
}

/// Prints the completion script on standard output.
pub fn run(args: Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "weir", &mut script);
    show::raw(&script)?;
    Ok(Exit::Done)
}
