//! SETATTR: changes attributes, including the size.

use crate::Errno;
use crate::abi::fattr;
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::request::{Header, SetAttr};
use client::Node;
use std::time::Duration;
use types::{Attrs, ByteRange, FileKind, SetAttrs, SetTime, Status, Timestamp};

const EINVAL: Errno = Errno(22);

/// Executes SETATTR.
pub(crate) async fn setattr(fs: &FileSystem, header: &Header, args: &SetAttr) -> Answer {
    if let Some(attrs) = fs.coherence.own_setattr(header.pid, header.node, args) {
        return Ok(crate::reply::attributes(&attrs?, Duration::ZERO));
    }
    let changes = changes(args)?;
    if fs.coherence.writes_back() && args.valid & fattr::FH == 0 && is_times_alone(&changes) {
        let attrs = set_closed(fs, header, &changes).await?;
        fs.coherence.size_may_change(header.node);
        return Ok(fs.attributes_changed(header, &attrs));
    }
    fs.coherence.size_may_change(header.node);
    let _changing = fs.coherence.directory_changes(header.node);
    let resizing = changes.size.and_then(|_| fs.coherence.size_change_begins(header.node));
    let open = (args.valid & fattr::FH != 0).then(|| fs.opens.file(args.fh)).transpose()?;
    let attrs = match open {
        // The kernel, not a program, sends this SETATTR at the end of a synchronous write(2), with its own time of the
        // write.
        Some(open) if is_times_alone(&changes) && fs.coherence.ends_synchronous_write(header.pid).await => {
            // The servers set the modification time when they received the bytes, so do not change the file.
            open.file.attrs()
        }
        Some(open) if is_times_alone(&changes) => {
            let attrs = set_written(&open, &changes).await?;
            fs.coherence.write_time_set(header.node, &attrs, &changes);
            attrs
        }
        // A caller that has the file open keeps its rights from the open, even if the mode has changed. So truncate
        // through the open file.
        Some(open) if changes.size.is_some() => open.file.set_attrs(&changes).await?,
        _ => set_named(fs, header, args, &changes).await?,
    };
    let attrs = match args.valid & fattr::KILL_SUIDGID != 0 && attrs.mode & 0o6000 != 0 {
        true => Box::pin(fs.drop_privileges(header, &fs.node(header)?)).await?,
        false => attrs,
    };
    let attrs = fs.coherence.size_changed(resizing, attrs).await?;
    if changes.mode.is_some() {
        fs.opens.doubt_bits(header.node);
    }
    if let Some(size) = changes.size {
        fs.coherence.range_changed(header.node, ByteRange { offset: size, len: u64::MAX - size });
    }
    Ok(fs.attributes_changed(header, &attrs))
}

/// Sets attributes of a file by its path, with the caller's credentials.
async fn set_named(fs: &FileSystem, header: &Header, args: &SetAttr, changes: &SetAttrs) -> Result<Attrs, Errno> {
    let (mount, node) = (fs.by_name(header), fs.node(header)?);
    match mount.setattr(&node, changes).await {
        // A user who may write to a file, but does not own the file, may set the file's times only to the present time
        // (utimensat(2)). So let the server set its own time.
        Err(error) if (error.is(Status::Perm) || error.is(Status::Access)) && means_now(args) => {
            Ok(mount.setattr(&node, &SetAttrs { mtime: Some(SetTime::Now), ..*changes }).await?)
        }
        outcome => Ok(outcome?),
    }
}

/// Returns whether the request sets both times to the present. With write-back, the kernel sends its own present time
/// instead of the flag for the present time.
fn means_now(args: &SetAttr) -> bool {
    let all = fattr::ATIME_NOW | fattr::MTIME | fattr::CTIME;
    args.valid & (all | fattr::MTIME_NOW) == all && args.mtime == args.ctime
}

/// Sets the kernel's time of the last write, after all writes are durable. The kernel sends this SETATTR during an
/// fsync or close, and returns an error of the SETATTR to the caller of the fsync or close. This function returns no
/// write error, because the kernel's next request reports the write error, and the caller must receive it only once.
async fn set_written(open: &OpenFile, changes: &SetAttrs) -> Result<Attrs, Errno> {
    match open.file.set_attrs_behind(changes).await {
        // Only the owner of a file may set its times to given values. For other users, the file keeps the time at
        // which the servers received the bytes.
        Err(error) if error.is(Status::Perm) || error.is(Status::Access) => Ok(open.file.refresh().await?),
        outcome => Ok(outcome?),
    }
}

/// Sets the kernel's time of the last write, for a file that the kernel does not have open. The kernel also sends this
/// request after a rename, link or unlink of the file. The caller in the request may be a process that has nothing to
/// do with the write, for example a process that runs sync(2).
async fn set_closed(fs: &FileSystem, header: &Header, changes: &SetAttrs) -> Result<Attrs, Errno> {
    let node = fs.node(header)?;
    // If the kernel only sends back the time that this mount last sent to it, no program has set this time. Do not set
    // the time on the mgr, because other clients may have written to the file since then.
    let set = match fs.coherence.is_time_of_mount(header.node, changes.mtime) {
        true => None,
        false => Some(fs.acting(header).setattr(&node, changes).await),
    };
    let attrs = match set {
        Some(Ok(attrs)) => Ok(attrs),
        Some(Err(error)) if ![Status::Perm, Status::Access, Status::Stale].iter().any(|status| error.is(*status)) => {
            Err(error)
        }
        _ => fs.callers.anybody().getattr(&node).await,
    };
    match attrs {
        // The file no longer has a name, so no program will ever see the time. Reply with placeholder attributes.
        Err(error) if error.is(Status::Stale) => Ok(gone(&node, changes)),
        outcome => Ok(outcome?),
    }
}

/// Returns placeholder attributes for a file that no longer exists.
fn gone(node: &Node, changes: &SetAttrs) -> Attrs {
    let time = match changes.mtime {
        Some(SetTime::To(time)) => time,
        _ => Timestamp::default(),
    };
    let (kind, rdev) = (FileKind::Regular, (0, 0));
    let (mode, nlink, uid, gid, size, used, change) = (0, 0, 0, 0, 0, 0, 0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let holes = false;
    Attrs { id: node.id, kind, mode, nlink, uid, gid, size, used, holes, atime, mtime, ctime, btime, change, rdev }
}

/// Returns whether the change sets only the modification time, and to a given value.
fn is_times_alone(changes: &SetAttrs) -> bool {
    matches!(changes.mtime, Some(SetTime::To(_))) && SetAttrs { mtime: None, ..*changes } == SetAttrs::default()
}

fn changes(args: &SetAttr) -> Result<SetAttrs, Errno> {
    let is = |bit| args.valid & bit != 0;
    let time = |set, now, (secs, nanos)| match (is(set), is(now)) {
        (_, true) => Ok(Some(SetTime::Now)),
        (true, false) => Timestamp::new(secs, nanos).map(|to| Some(SetTime::To(to))).ok_or(EINVAL),
        (false, false) => Ok(None),
    };
    Ok(SetAttrs {
        mode: is(fattr::MODE).then_some(args.mode & 0o7777),
        uid: is(fattr::UID).then_some(args.uid),
        gid: is(fattr::GID).then_some(args.gid),
        size: is(fattr::SIZE).then_some(args.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime)?,
        // The servers set the modification time at a truncation. With write-back, the kernel sends its own time too.
        // Ignore this time, because only the owner of the file may set it.
        mtime: if is(fattr::SIZE) { None } else { time(fattr::MTIME, fattr::MTIME_NOW, args.mtime)? },
    })
}
