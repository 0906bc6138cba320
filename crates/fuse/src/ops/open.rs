//! OPEN: opens an existing file.

use crate::Errno;
use crate::abi;
use crate::fs::{Answer, FileSystem, hint, wanted};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::{File, Node, OpenFlags, OpenOptions};
use types::Status;

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

/// Executes OPEN. If the file was removed after the kernel looked up its name, the mount replies ESTALE, and the kernel
/// looks up the path again. If the second OPEN fails in the same way ([`crate::open_unlink_race`]) and the name no
/// longer exists, the mount replies ENOENT.
pub(crate) async fn open(fs: &FileSystem, header: &Header, flags: u32, open_flags: u32) -> Answer {
    let outcome = open_found(fs, header, flags, open_flags).await;
    if matches!(outcome, Err(Errno::MOVED | Errno::UNWALKED)) {
        return outcome;
    }
    if !matches!(outcome, Err(ESTALE)) {
        fs.open_unlink_races.opened(header.pid);
        return outcome;
    }
    let Some((dir, name)) = fs.open_unlink_races.gone(header.pid, header.node) else { return outcome };
    match fs.callers.anybody().lookup(&fs.nodes.get(dir)?, &name).await {
        Err(error) if error.is(Status::NoEnt) => Err(ENOENT),
        _ => outcome,
    }
}

/// Opens the file, and updates the kernel's cache with the attributes of this open. So the program sees all changes
/// that other clients made before they closed the file.
async fn open_found(fs: &FileSystem, header: &Header, flags: u32, open_flags: u32) -> Answer {
    let node = fs.node(header)?;
    let dir = fs.nodes.dir_of(header.node);
    let named = !fs.open_unlink_races.may_be_nameless(header.pid, header.node);
    let options = OpenOptions { flags: wanted(flags), dir: dir.as_ref(), policy: hint(flags), alone: false, named };
    let resizing = options.flags.truncate.then(|| fs.coherence.size_change_begins(header.node)).flatten();
    let file = open_file(fs, header, &node, options, flags).await?;
    // Clear the setuid and setgid bits only after the open, because a caller that may not truncate the file must not
    // clear them.
    if file.attrs().mode & 0o6000 != 0 && open_flags & abi::OPEN_KILL_SUIDGID != 0 && options.flags.truncate {
        Box::pin(fs.drop_privileges(header, &node)).await?;
    }
    let found = fs.coherence.opened(header.pid, header.node, &file, options.flags.truncate).await;
    let admission = fs.admit(&file, flags, found);
    let how = admission.how();
    fs.nodes.may_have_pages(header.node, how);
    fs.coherence.size_changed_unseen(resizing);
    let handle = fs.add_file(file, flags, admission);
    let how = fs.coherence.open_replied(header.node, how).await;
    Ok(opened(Body::with_capacity(16), handle, how).reply())
}

/// Opens the file, with a write delegation if write-back needs it. For write-back the caller must be able to read the
/// file, because the kernel reads pages that a program writes only partly. Otherwise the writes bypass the page
/// cache.
async fn open_file(
    fs: &FileSystem,
    header: &Header,
    node: &Node,
    options: OpenOptions<'_>,
    flags: u32,
) -> client::Result<File> {
    let mount = fs.by_name(header);
    if fs.coherence.wants_write_delegation(flags) {
        let both = OpenFlags { read: true, ..options.flags };
        match mount.open_with(node, OpenOptions { flags: both, alone: true, ..options }).await {
            Err(error) if error.is(Status::Access) && !options.flags.read => {}
            outcome => return outcome,
        }
    }
    mount.open_with(node, options).await
}
