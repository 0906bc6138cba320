//! `weir cp`: copies files and trees into, out of and within Weir.

use crate::copy::entry::{Location, Meta};
use crate::copy::job::{DirJob, FileJob, Folder, Into};
use crate::copy::remote::Weir;
use crate::copy::report::{OutputMode, Report};
use crate::copy::side::Side;
use crate::copy::{Copy, Plan, stat};
use crate::failure::{Exit, Failure, Outcome};
use crate::locator::{BareName, Locator, parse};
use crate::session::{Connect, Mounts, runtime};
use crate::stop::Stop;
use client::Target;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use types::FileKind;

/// Copy files and trees into, out of and within Weir
///
/// A copy keeps modes, times, symlinks, hard links, user xattrs and holes; as root also owners. The command writes each
/// file under a temporary name (.weir-cp-*) and renames the file when it is complete. So every file under its final
/// name is complete.
#[derive(clap::Args)]
#[command(after_help = "Names: weir://host[:port]/path, or weir:/path inside WEIR_URL. All other names are local.

Examples:
  weir cp notes.txt weir:/                    copy a file into Weir
  weir cp -r ~/project weir:/                 copy a tree into Weir, as weir:/project
  weir cp -r ~/project/. weir:/work           copy its entries into an existing directory
  weir cp -r weir:/project /tmp/back          copy a tree out of Weir
  weir cp weir:/a weir:/b                     copy a file within Weir
  weir cp -r --jobs 32 --json src weir:/      copy 32 files at a time, print a summary as JSON")]
pub struct Args {
    /// Files or directories to copy; with more than one the destination must be a directory
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The destination: an existing directory, or the new name
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
    /// Copy directories and their contents; symlinks are copied, not followed
    #[arg(short, long, visible_short_aliases = ['R', 'a'], visible_alias = "archive")]
    recursive: bool,
    /// Keep modes, times and, as root, owners; has no effect, because every copy does this
    #[arg(short, long)]
    preserve: bool,
    /// Replace existing files; has no effect, because every copy does this
    #[arg(short, long)]
    force: bool,
    /// Use the destination as the new name even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Maximum number of files, and of parts of large files, to copy at the same time
    #[arg(short, long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: u16,
    /// Print only errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print a summary as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir cp`.
pub fn run(args: Args) -> Outcome {
    let base = args.connect.base()?;
    let read = |name: &OsString| parse(name, BareName::Local, base.as_ref());
    let sources = args.sources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let destination = read(&args.destination)?;
    let runtime = runtime()?;
    let (stop, mut mounts) = (runtime.block_on(async { Stop::listen() })?, Mounts::new(&args.connect)?);
    let mut side = |locator: &Locator| -> Result<Side, Failure> {
        Ok(match locator {
            Locator::Local(_) => Side::Local,
            Locator::Remote(target) => {
                let mount = runtime.block_on(mounts.get(target))?;
                Side::Weir(Weir::new(mount, runtime.handle().clone(), stop.clone()))
            }
        })
    };
    let same_system = one_side(&sources, &destination)?;
    let (from, to) = (side(&sources[0])?, side(&destination)?);
    let output = match (args.quiet, args.json) {
        (true, _) => OutputMode::Quiet,
        (_, true) => OutputMode::Json,
        _ => OutputMode::Normal,
    };
    let report = Report::new("cp", output);
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    let place = Destination::find(&to, &destination, args.no_target_directory)?;
    if args.sources.len() > 1 && !matches!(place, Destination::Inside(_)) {
        return Err(Failure::usage(format!("{}: not a directory", crate::show::path(args.destination.as_bytes())))
            .next("to copy several sources, name an existing directory; \"weir mkdir -p\" makes one"));
    }
    for (name, source) in args.sources.iter().zip(&sources) {
        let outcome = not_into_itself(&args, &from, source, &destination)
            .and_then(|()| add(&args, &from, name, source, &place, &mut dirs, &mut files));
        match outcome {
            Ok(()) => {}
            Err(failure) if args.sources.len() == 1 || failure.code != Exit::Failed => {
                return Err(failure.about(crate::show::path(name.as_bytes())));
            }
            Err(failure) => report.fail(name.as_bytes(), &failure),
        }
    }
    let plan = Plan { from, to, same_system, jobs: args.jobs.into(), stop, report };
    let outcome = Copy::run(plan, dirs, files);
    runtime.block_on(mounts.disconnect());
    runtime.shutdown_background();
    outcome
}

/// Checks that all sources are on one file system, and that the sources or the destination are in Weir. Returns whether
/// sources and destination are on the same file system.
fn one_side(sources: &[Locator], destination: &Locator) -> Result<bool, Failure> {
    let same = |a: &Locator, b: &Locator| match (a, b) {
        (Locator::Local(_), Locator::Local(_)) => true,
        (Locator::Remote(a), Locator::Remote(b)) => a.same_server(b),
        _ => false,
    };
    if !sources.iter().all(|source| same(source, &sources[0])) {
        return Err(
            Failure::usage("the sources are on different file systems").next("copy from one file system at a time")
        );
    }
    match (&sources[0], destination) {
        (Locator::Local(_), Locator::Local(_)) => Err(Failure::usage("both names are local")
            .next("write weir:/path (with WEIR_URL set) or weir://host/path for a name in Weir")),
        (a, b) => Ok(same(a, b)),
    }
}

/// The destination of a copy, as the user named it.
enum Destination {
    /// An existing directory: each source is copied into it under the name of the source.
    Inside(Arc<Folder>),
    /// A directory, and the new name in it under which the only source is copied.
    As(Arc<Folder>, Vec<u8>),
    /// The root of the destination file system. The copy puts the entries of the source directory into this root.
    Root(Arc<Folder>),
}

impl Destination {
    fn find(to: &Side, destination: &Locator, as_name: bool) -> Result<Self, Failure> {
        let folder = |location| Arc::new(Folder { location, attrs: None, parent: None });
        let (found, parent, name) = match (to, destination) {
            (Side::Weir(weir), Locator::Remote(target)) => {
                let named = target.parent().zip(target.name());
                let Some((parent, name)) = named else {
                    let top = folder(weir.resolve(&[], true)?.0);
                    return Ok(if as_name { Destination::Root(top) } else { Destination::Inside(top) });
                };
                (weir.resolve(target.path(), true), weir.resolve(parent.path(), true), name.to_vec())
            }
            (_, Locator::Local(path)) => {
                let location = |path: &Path| target_location(path.as_os_str().as_bytes().to_vec());
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let Some(name) = path.file_name() else {
                    let (top, _) = location(path).map_err(|e| e.about(path.display()))?;
                    return Ok(if as_name { Destination::Root(folder(top)) } else { Destination::Inside(folder(top)) });
                };
                (location(path), location(parent), name.as_bytes().to_vec())
            }
            (Side::Local, Locator::Remote(_)) => {
                return Err(Failure::new("the file belongs to the other side of the copy"));
            }
        };
        if let Err(failure) = &found
            && failure.code != Exit::Failed
        {
            return Err(failure.clone());
        }
        match found {
            Ok((location, meta)) if meta.attrs.kind == FileKind::Directory && !as_name => {
                Ok(Destination::Inside(folder(location)))
            }
            _ => match parent {
                Ok((location, meta)) if meta.attrs.kind == FileKind::Directory => {
                    Ok(Destination::As(folder(location), name))
                }
                Ok((location, _)) => {
                    Err(Failure::new(format!("{}: not a directory", crate::show::path(&location.path))))
                }
                Err(failure) => {
                    Err(failure.about("the destination directory").next("make it with \"weir mkdir -p\" (or mkdir -p)"))
                }
            },
        }
    }
}

/// Returns the location and metadata of a local file or directory: the destination of the copy, or the parent directory
/// of the destination. Follows symlinks. The location of a directory contains an open descriptor of the directory.
fn target_location(path: Vec<u8>) -> Result<(Location, Meta), Failure> {
    let meta = stat(&path, true)?;
    let location = if meta.attrs.kind == FileKind::Directory { Location::target(path)? } else { Location::local(path) };
    Ok((location, meta))
}

fn stat_location(path: Vec<u8>, follow: bool) -> Result<(Location, Meta), Failure> {
    let meta = stat(&path, follow)?;
    Ok((Location::local(path), meta))
}

/// Refuses to copy a directory into itself, because such a copy never ends. Compares every directory on the path of the
/// destination with the source directory.
fn not_into_itself(args: &Args, from: &Side, source: &Locator, destination: &Locator) -> Result<(), Failure> {
    let (Side::Weir(weir), Locator::Remote(source), Locator::Remote(destination)) = (from, source, destination) else {
        return Ok(());
    };
    if !args.recursive || !source.same_server(destination) {
        return Ok(());
    }
    let (source, meta) = weir.resolve(source.path(), false)?;
    if meta.attrs.kind != FileKind::Directory {
        return Ok(());
    }
    for end in 0..=destination.path().len() {
        match weir.resolve(&destination.path()[..end], true) {
            Ok((above, _)) if above.node == source.node => {
                return Err(Failure::new("a directory cannot be copied into itself").next("choose another destination"));
            }
            Ok(_) => {}
            // The rest of the destination path does not exist, so none of its components can be the source directory.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn add(
    args: &Args,
    from: &Side,
    name: &OsString,
    source: &Locator,
    place: &Destination,
    dirs: &mut Vec<DirJob>,
    files: &mut Vec<FileJob>,
) -> Result<(), Failure> {
    let (location, meta) = match (from, source) {
        (Side::Weir(weir), Locator::Remote(target)) => weir.resolve(target.path(), !args.recursive)?,
        (_, Locator::Local(path)) => stat_location(path.clone().into_os_string().into_vec(), !args.recursive)?,
        (Side::Local, Locator::Remote(_)) => {
            return Err(Failure::new("the file belongs to the other side of the copy"));
        }
    };
    let directory = meta.attrs.kind == FileKind::Directory;
    if directory && !args.recursive {
        return Err(Failure::usage("is a directory").next("add -r to copy it and its contents"));
    }
    let own_name = own_name(name, source);
    let (folder, name) = match (place, own_name) {
        (Destination::As(folder, name), _) => (folder.clone(), name.clone()),
        (Destination::Inside(folder), Some(name)) => (folder.clone(), name),
        (Destination::Inside(folder), None) | (Destination::Root(folder), _) if directory => {
            dirs.push(DirJob { location, meta, into: Into::Existing(folder.clone()) });
            return Ok(());
        }
        _ => return Err(Failure::usage("a file cannot replace the root of the file system")),
    };
    match directory {
        true => dirs.push(DirJob { location, meta, into: Into::Name(folder, name) }),
        false => files.push(FileJob { location, meta, folder, name }),
    }
    Ok(())
}

/// Returns the name under which a source is copied. Returns `None` for a root, `.` and `dir/.`, because the command
/// then copies the entries of the source directory, not the directory itself.
fn own_name(typed: &OsString, source: &Locator) -> Option<Vec<u8>> {
    let typed = typed.as_bytes();
    if typed == b"." || typed.ends_with(b"/.") {
        return None;
    }
    match source {
        Locator::Remote(target) => Target::name(target).map(<[u8]>::to_vec),
        Locator::Local(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
    }
}
