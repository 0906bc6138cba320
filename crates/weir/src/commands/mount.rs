//! `weir mount`: mounts a file system at a directory through FUSE.

use crate::daemon;
use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::identity::Identity;
use crate::logging::{self, DAEMON_EVENTS};
use crate::mounted::{Durable, MountOptions, Mounting, Transport, must_be_free, seconds};
use crate::session::{Connect, runtime};
use crate::show;
use crate::stop::Stop;
use clap::ValueEnum;
use client::{Mount, Options};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The names under which mount(8) starts a helper for the types `weir` and `fuse.weir`; `/proc/mounts` shows
/// `fuse.weir`. If there is no helper for `fuse.weir`, mount(8) starts the helper for `fuse` and passes the type with
/// `-t`.
const HELPERS: [&str; 4] = ["mount.weir", "mount.fuse.weir", "mount.fuse", "mount.fuse3"];
/// The file system types that mount(8) passes with `-t` to the helper for `fuse`.
const TYPES: [&str; 2] = ["weir", "fuse.weir"];
/// The line that a background mount prints on standard output when the file system is mounted.
const READY: &str = "mounted";

/// Mount a file system at a directory
///
/// The mount runs in the background until "weir umount" or umount(8). A mount by root serves all users; the server checks
/// the permissions of each user.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir mount weir://10.0.0.5:2049/ /mnt/weir
  weir mount weir://10.0.0.5/project /mnt/project -o ro,access=page
  weir mount --foreground weir://10.0.0.5/ /mnt/weir       until Ctrl-C
  mount -t weir weir://10.0.0.5/ /mnt/weir                 with a link to weir at /sbin/mount.weir
  mount -t fuse.weir weir://10.0.0.5/ /mnt/weir            with a link to weir at /sbin/mount.fuse.weir
Line of /etc/fstab:
  weir://10.0.0.5/  /mnt/weir  weir  _netdev,hard,access=page,log=/var/log/weir.log  0  0")]
pub struct Args {
    /// The URL of the file system, or of a directory in it
    #[arg(value_name = "URL")]
    what: OsString,
    /// The mount point
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Stay in the foreground until the file system is unmounted; Ctrl-C unmounts it
    #[arg(short, long)]
    foreground: bool,
    #[command(flatten)]
    how: MountOptions,
    /// Options of mount(8), separated by commas: ro, writeback, durable=close|fsync, transport=auto|device|uring, parts
    /// of the policy (access=page, write_threshold=SIZE), attr_timeout=S, entry_timeout=S, known_files=N,
    /// absent_timeout=S, allow_other, over, hard (wait for servers for ever), soft, retry_timeout=S, connect_timeout=S,
    /// log=FILE, no_checksums, mgr_path, no_short_circuit, no_negative, noexec, suid and dev (the default for mount(8) by root;
    /// nosuid and nodev disable them), remount (with ro, rw, nosuid and so on: changes an existing mount). Other options
    /// of mount(8) have no effect
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Log file of a mount in the background [default: syslog or the journal]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Change the options of an existing mount (`-o remount`).
    #[arg(skip)]
    remount: bool,
    /// Marks the background process, which reports on standard output when the file system is mounted
    #[arg(long, hide = true)]
    background: bool,
    /// Check the arguments, but do not mount (`mount -f`)
    #[arg(long, hide = true)]
    fake: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Returns the `weir mount` command line for a call of this program as a mount helper. mount(8) calls a helper as
/// `mount.weir URL DIRECTORY [-sfnv] [-o OPTIONS] [-t TYPE]`. libfuse's `mount.fuse` calls a helper as `weir URL
/// DIRECTORY -o OPTIONS`.
///
/// If `root` mounts, the command line allows setuid bits and devices, because mount(8) passes `nosuid` and `nodev`
/// explicitly.
pub fn expand_helper(args: Vec<OsString>, root: bool) -> Vec<OsString> {
    let called = args.first().and_then(|name| Path::new(name).file_name());
    let named = HELPERS.iter().any(|helper| called == Some(OsStr::new(helper)));
    // If the first argument is a URL instead of a subcommand, libfuse's `mount.fuse` has called this program.
    let by_libfuse = || args.get(1).is_some_and(|first| first.as_bytes().starts_with(b"weir://"));
    if !named && !by_libfuse() {
        return args;
    }
    let mut out: Vec<OsString> = vec!["weir".into(), "mount".into()];
    if root {
        out.extend(["-o", "suid,dev"].map(OsString::from));
    }
    let mut rest = args.into_iter().skip(1).peekable();
    let is_ours = |name: &OsString| TYPES.iter().any(|known| name == known);
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-o") => out.extend([arg].into_iter().chain(rest.next())),
            // `mount -f` must not mount (mount(8), "fake").
            Some("-f") => out.push("--fake".into()),
            // Drop the flags `-s` (sloppy), `-n` (no mtab) and `-v` (verbose) of mount(8), because they have no effect
            // on a Weir mount.
            Some("-s" | "-n" | "-v") => {}
            // Drop `-t` with a file system type of Weir. Keep `-t` with any other type, so that the parser of `weir
            // mount` rejects the command line.
            Some("-t") if rest.next_if(is_ours).is_some() => {}
            _ => out.push(arg),
        }
    }
    out
}

/// Returns the command line of this process. A call as a mount helper becomes a `weir mount` command line.
pub fn called() -> Vec<OsString> {
    expand_helper(std::env::args_os().collect(), rustix::process::geteuid().is_root())
}

/// Runs `weir mount`.
pub fn run(mut args: Args) -> Outcome {
    apply_options(&mut args)?;
    if args.fake {
        return Ok(Exit::Done);
    }
    if args.remount {
        let config = args.how.config("");
        return match fuse::remount(&args.dir, &config) {
            Ok(()) => Ok(Exit::Done),
            Err(error) => Err(Failure::from(error).about(args.dir.display())),
        };
    }
    must_be_free(&args.dir, args.how.over)?;
    if args.foreground || args.background { serve(&args) } else { daemonize(&args) }
}

fn apply_options(args: &mut Args) -> Result<(), Failure> {
    let again = args.options.iter().any(|option| option == "remount");
    for option in std::mem::take(&mut args.options) {
        let (key, value) = option.split_once('=').unwrap_or((&option, ""));
        let bad = |why: String| Failure::usage(format!("-o {option}: {why}"));
        let time = || seconds(value).map_err(bad);
        match deprecated::mount_option(key) {
            "ro" => args.how.read_only = true,
            "writeback" => args.how.writeback = true,
            "rw" => args.how.read_only = false,
            "allow_other" => args.how.allow_other = true,
            "over" => args.how.over = true,
            "hard" => args.connect.wait_for_ever(),
            "soft" => args.connect.wait_for(Options::default().retry_timeout),
            "retry_timeout" => args.connect.wait_for(whole_seconds(value).map_err(bad)?),
            "connect_timeout" => args.connect.try_for(whole_seconds(value).map_err(bad)?),
            "no_checksums" => args.connect.skip_checksums(),
            "log" if value.is_empty() => return Err(bad("name a file, for example log=/var/log/weir.log".into())),
            "log" => args.log = Some(value.into()),
            "foreground" => args.foreground = true,
            "mgr_path" => args.connect.take_mgr_path(),
            "no_short_circuit" => args.how.no_short_circuit = true,
            "no_negative" => args.how.no_negative = true,
            "durable" => args.how.durable = Some(Durable::from_str(value, false).map_err(bad)?),
            "transport" => args.how.transport = Transport::from_str(value, false).map_err(bad)?,
            "known_files" => args.how.known_files = value.parse().map_err(|_| bad("write a number of files".into()))?,
            "attr_timeout" => args.how.attr_timeout = time()?,
            "entry_timeout" => args.how.entry_timeout = time()?,
            "absent_timeout" => args.how.absent_timeout = time()?,
            "remount" => args.remount = true,
            "suid" | "nosuid" => args.how.powers.suid = key == "suid",
            "dev" | "nodev" => args.how.powers.devices = key == "dev",
            "exec" | "noexec" => args.how.powers.exec = key == "exec",
            // Ignore options of mount(8) that mount(8) handles itself, such as `nofail`, and options that state what
            // every Weir mount does, such as `default_permissions`.
            "" | "defaults" | "auto" | "noauto" | "_netdev" | "nofail" | "user" | "users" | "nouser" | "owner" => {}
            "group" | "async" | "silent" | "loud" | "default_permissions" => {}
            // Ignore the options for access times, because reads in Weir never update access times.
            "atime" | "noatime" | "diratime" | "nodiratime" | "relatime" | "lazytime" | "nolazytime" => {}
            key if args.how.set(key, value).map_err(bad)? => {}
            key if key.starts_with("x-") || key.starts_with("comment") => {}
            // For a remount, mount(8) also passes the options of the existing mount from `/proc/mounts`. So ignore
            // unknown options of a remount.
            _ if again => {}
            _ => return Err(bad("no such mount option".into()).next("\"weir mount --help\" lists them")),
        }
    }
    Ok(())
}

/// Parses the timeout of a mount option, in whole seconds.
fn whole_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("write whole seconds, from 1 to 86400".to_owned()),
    }
}

/// Serves the mount in this process until the mount is unmounted or the user stops it.
fn serve(args: &Args) -> Outcome {
    if args.background {
        rustix::process::setsid()?;
    }
    let target = args.connect.target(&args.what)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let stop = Stop::listen_as_daemon("mount")?;
        let identity = Identity::of_mount(&target.to_string(), &args.dir);
        let options = Options { identity: identity.as_ref().map(Identity::name), ..args.connect.options()? };
        let mount = Mount::connect(&target, args.how.options(options)).await?;
        let (root, _) = mount.resolve(target.path(), true).await.map_err(|e| Failure::from(e).about(&target))?;
        let mounting = Mounting::start(mount, root, &args.dir, args.how.config(&target.to_string()), identity)?;
        if args.background {
            detach(args.log.as_deref())?;
            tracing::info!(target: DAEMON_EVENTS, daemon = "mount", %target, dir = %mounting.dir().display(), "started");
        } else {
            let (dir, by) = (mounting.dir().display(), mounting.carried());
            show::line(&format!("{target} is mounted at {dir} (requests over {by}); Ctrl-C unmounts it"))?;
        }
        let ended = mounting.until(stop.wait(), !args.background).await;
        daemon::stopped("mount");
        ended
    });
    if args.background
        && let Err(failure) = &outcome
    {
        // The parent process has ended and no longer reads this process's output, so log the failure.
        tracing::error!("{}", failure.what);
    }
    runtime.shutdown_background();
    outcome
}

/// Reports to the waiting parent process that the file system is mounted, and detaches from the terminal. Later log
/// lines go to the file `log`, or to the system's log.
fn detach(log: Option<&Path>) -> Result<(), Failure> {
    if log.is_none()
        && let Err(error) = logging::to_system()
    {
        tracing::debug!(%error, "cannot use the system log");
    }
    show::line(READY)?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let err = match log {
        Some(path) => std::fs::OpenOptions::new().create(true).append(true).open(path),
        None => null.try_clone(),
    };
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&err?)?;
    Ok(())
}

/// Starts the background process, and waits until the background process has mounted the file system.
fn daemonize(args: &Args) -> Outcome {
    if let Some(log) = &args.log {
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(log);
        opened.map_err(|e| Failure::from(e).about(log.display()))?;
    }
    let own = std::env::current_exe()?;
    let mut command = Command::new(own);
    // Pass the options to the background process as the user gave them. Skip the first argument, the program name,
    // which may be that of a mount helper.
    command.args(called().into_iter().skip(1)).arg("--background");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(Exit::Done);
    }
    // The background process has already printed why it failed, so print nothing.
    Ok(match child.wait()?.code() {
        Some(code) if code == Exit::Usage as i32 => Exit::Usage,
        Some(code) if code == Exit::Unreachable as i32 => Exit::Unreachable,
        _ => Exit::Failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(args: &[&str], root: bool) -> Vec<String> {
        let args = expand_helper(args.iter().map(OsString::from).collect(), root);
        args.into_iter().map(|arg| arg.into_string().unwrap()).collect()
    }

    #[test]
    fn calls_as_a_mount_helper_become_weir_mount_commands() {
        let args = ["/sbin/mount.weir", "weir://h/", "/mnt", "-n", "-o", "rw,_netdev"];
        assert_eq!(expanded(&args, false), ["weir", "mount", "weir://h/", "/mnt", "-o", "rw,_netdev"]);
        assert_eq!(expanded(&args, true), ["weir", "mount", "-o", "suid,dev", "weir://h/", "/mnt", "-o", "rw,_netdev"]);
        for (name, named) in
            [("mount.fuse.weir", &[][..]), ("mount.fuse", &["-t", "fuse.weir"]), ("mount.fuse3", &["-t", "weir"])]
        {
            let args = [&[name, "weir://h/", "/mnt", "-o", "ro"], named].concat();
            assert_eq!(expanded(&args, false), ["weir", "mount", "weir://h/", "/mnt", "-o", "ro"], "{name}");
        }
        let args = ["weir", "weir://h/", "/mnt", "-o", "ro,remount"];
        assert_eq!(expanded(&args, false), ["weir", "mount", "weir://h/", "/mnt", "-o", "ro,remount"]);
        let fake = ["/sbin/mount.weir", "weir://h/", "/mnt", "-f", "-v", "-o", "ro"];
        assert_eq!(expanded(&fake, false), ["weir", "mount", "weir://h/", "/mnt", "--fake", "-o", "ro"]);
        let other = ["/sbin/mount.fuse", "sshfs#h:", "/mnt", "-t", "fuse.sshfs"];
        assert_eq!(expanded(&other, false), ["weir", "mount", "sshfs#h:", "/mnt", "-t", "fuse.sshfs"]);
        assert_eq!(expanded(&["/usr/bin/weir", "ls", "-f"], true), ["/usr/bin/weir", "ls", "-f"]);
    }
}
