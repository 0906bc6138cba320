//! The commands, one file each.

mod cat;
mod completions;
mod cp;
mod df;
mod du;
mod dump;
mod find;
mod fsck;
mod get;
pub mod guard;
mod iod;
mod ln;
mod ls;
mod mgr;
mod mkdir;
mod mkfs;
pub mod mount;
mod mv;
mod policy;
mod put;
mod replay;
mod restore;
mod rm;
mod scrub;
mod stat;
mod status;
mod tune;
mod umount;
mod up;

pub use find::expand as expand_find;

use crate::failure::Outcome;
use clap::Subcommand;

/// What `weir` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Run a local cluster in the foreground: one mgr and some iods
    Up(up::Args),
    /// Make the stores of a file system: one for its mgr, one for each iod
    Mkfs(mkfs::Args),
    /// Run a metadata server
    Mgr(mgr::Args),
    /// Run a data server
    Iod(iod::Args),
    /// Mount a file system at a directory
    Mount(mount::Args),
    /// Unmount it
    Umount(umount::Args),
    /// List files
    Ls(ls::Args),
    /// Copy files and trees into, out of and within Weir
    Cp(cp::Args),
    /// Print the content of files
    Cat(cat::Args),
    /// Store standard input as a file
    Put(put::Args),
    /// Write one file, or a range of it, to standard output
    Get(get::Args),
    /// Make directories
    Mkdir(mkdir::Args),
    /// Remove files and trees
    Rm(rm::Args),
    /// Rename and move files and directories
    Mv(mv::Args),
    /// Make hard and symbolic links
    Ln(ln::Args),
    /// Show everything about a file, also which bytes are on which iod
    Stat(stat::Args),
    /// Show how full a file system is
    Df(df::Args),
    /// Show how much the files of a tree take
    Du(du::Args),
    /// Walk trees and print what matches
    Find(find::Args),
    /// Show and set how files are laid out, read and written
    Policy(policy::Args),
    /// Replay a trace of file operations, and time it; make traces
    Replay(replay::Args),
    /// Measure a file system, and say how it is best used
    Tune(tune::Args),
    /// Show how a cluster stands: its health, what is down, capacity, clients, pending work
    Status(status::Args),
    /// Check a running file system for damage, and repair it
    Fsck(fsck::Args),
    /// Back up the metadata store of a file system
    Dump(dump::Args),
    /// Make the metadata store of a dump
    Restore(restore::Args),
    /// Read everything that the iods keep and report what is damaged
    Scrub(scrub::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Stand guard over a mount: started by mounts, for themselves
    #[command(hide = true)]
    Guard(guard::Args),
}

impl Command {
    /// Whether it goes on for long by itself, so that its log says when it started and stopped.
    pub fn is_daemon(&self) -> bool {
        matches!(self, Command::Mgr(_) | Command::Iod(_) | Command::Mount(_))
    }

    /// Does it; `verbose` is the number of `-v`.
    pub fn run(self, verbose: u8) -> Outcome {
        match self {
            Command::Up(args) => up::run(args),
            Command::Mkfs(args) => mkfs::run(args),
            Command::Mgr(args) => mgr::run(args),
            Command::Iod(args) => iod::run(args),
            Command::Mount(args) => mount::run(args),
            Command::Umount(args) => umount::run(args),
            Command::Ls(args) => ls::run(args),
            Command::Cp(args) => cp::run(args),
            Command::Cat(args) => cat::run(args),
            Command::Put(args) => put::run(args),
            Command::Get(args) => get::run(args),
            Command::Mkdir(args) => mkdir::run(args),
            Command::Rm(args) => rm::run(args),
            Command::Mv(args) => mv::run(args),
            Command::Ln(args) => ln::run(args),
            Command::Stat(args) => stat::run(args),
            Command::Df(args) => df::run(args),
            Command::Du(args) => du::run(args),
            Command::Find(args) => find::run(args),
            Command::Policy(args) => policy::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Status(args) => status::run(args, verbose > 0),
            Command::Fsck(args) => fsck::run(args),
            Command::Dump(args) => dump::run(args),
            Command::Restore(args) => restore::run(args),
            Command::Scrub(args) => scrub::run(args),
            Command::Completions(args) => completions::run(args),
            Command::Guard(args) => guard::run(args),
        }
    }
}
