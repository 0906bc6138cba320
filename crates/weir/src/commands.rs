//! The subcommands of `weir`, one file each.

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
mod man;
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

/// A subcommand of `weir` with its arguments.
#[derive(Subcommand)]
pub enum Command {
    /// Run a local cluster in the foreground: one mgr and several iods
    Up(up::Args),
    /// Make the stores of a file system: one for its mgr, one for each iod
    Mkfs(mkfs::Args),
    /// Run a metadata server
    Mgr(mgr::Args),
    /// Run a data server
    Iod(iod::Args),
    /// Mount a file system at a directory
    Mount(mount::Args),
    /// Unmount a file system
    Umount(umount::Args),
    /// List files
    Ls(ls::Args),
    /// Copy files and trees into, out of and within Weir
    Cp(cp::Args),
    /// Print the contents of files
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
    /// Show all attributes of a file, and which bytes are on which iod
    Stat(stat::Args),
    /// Show the used and free space of a file system
    Df(df::Args),
    /// Show the space that the files of a tree use
    Du(du::Args),
    /// Search directory trees for files
    Find(find::Args),
    /// Show and set how files are laid out, read and written
    Policy(policy::Args),
    /// Make and replay traces of file operations, and time them
    Replay(replay::Args),
    /// Measure a file system and recommend settings
    Tune(tune::Args),
    /// Show the health of a cluster, its capacity, clients, and pending work
    Status(status::Args),
    /// Check a running file system for damage, and repair it
    Fsck(fsck::Args),
    /// Back up the metadata store of a file system
    Dump(dump::Args),
    /// Make a metadata store from a dump
    Restore(restore::Args),
    /// Read all data on the iods and report damage
    Scrub(scrub::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Write manual pages
    Man(man::Args),
    /// Abort the FUSE connection of a mount whose process ends; mounts start this command
    #[command(hide = true)]
    Guard(guard::Args),
}

impl Command {
    /// Returns whether the subcommand runs as a daemon, which works until a signal stops it. Daemons log their start
    /// and stop.
    pub fn is_daemon(&self) -> bool {
        matches!(self, Command::Mgr(_) | Command::Iod(_) | Command::Mount(_))
    }

    /// Runs the subcommand. `verbose` is the number of `-v` options, which sets the log level.
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
            Command::Man(args) => man::run(args),
            Command::Guard(args) => guard::run(args),
        }
    }
}
