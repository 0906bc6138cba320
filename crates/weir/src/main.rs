//! The `weir` binary: the daemons, a local cluster, the mount, and the commands for files and administration.

mod admin;
mod cluster;
mod commands;
mod config_files;
mod content;
mod copy;
mod daemon;
mod deprecated;
mod dumps;
mod failure;
mod glob;
mod health;
mod identity;
mod locator;
mod logging;
mod modes;
mod mounted;
mod nfs;
#[cfg(test)]
mod reference;
mod replay;
mod session;
mod show;
mod stop;
mod tune;

use clap::Parser;
use std::process::ExitCode;

/// A striped parallel file system in user space.
#[derive(Parser)]
#[command(name = "weir", version, about, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// Log to standard error: -v logs events, -vv every request. RUST_LOG overrides it
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: commands::Command,
}

const EXAMPLES: &str = "\
Names: weir://host[:port]/path; with WEIR_URL set, weir:/path (cp, put, get) or /path (other commands).
Exit codes: 0 done, 1 something failed, 2 wrong usage or configuration, 3 cluster unreachable, 130 interrupted.

Examples:
  weir up --mount /mnt                     start a cluster on this machine and mount it
  export WEIR_URL=weir://127.0.0.1:2049    make it the default file system
  weir cp -r ~/project weir:/              copy a tree into Weir
  weir ls -l /project                      list it
  weir cp -r weir:/project /tmp/back       copy it out of Weir";

fn main() -> ExitCode {
    let args = deprecated::rename(commands::mount::called());
    let cli = Cli::parse_from(commands::expand_find(args));
    logging::start(cli.verbose, cli.command.is_daemon());
    let code = match cli.command.run(cli.verbose) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            failure.code
        }
    };
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
