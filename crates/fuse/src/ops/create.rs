//! CREATE: creates a regular file and opens it.

use crate::abi;
use crate::coherence::Found;
use crate::fs::{Answer, FileSystem, hint, wanted};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::{CreateOptions, OpenFlags};
use rustix::fs::OFlags;
use types::Status;

/// Executes CREATE. The kernel has already applied the umask to `mode`.
pub(crate) async fn create(
    fs: &FileSystem,
    header: &Header,
    name: &[u8],
    (flags, open_flags): (u32, u32),
    mode: u32,
) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let how = OFlags::from_bits_retain(flags);
    let wanted = wanted(flags);
    let alone = fs.coherence.wants_write_delegation(flags);
    // Open the file for reading too: the kernel reads a page before a program writes only a part of the page. The
    // creator of a new file may read it, so this does not fail.
    let open = OpenFlags { read: alone || wanted.read, ..wanted };
    let options = CreateOptions {
        mode: mode & 0o7777,
        exclusive: how.contains(OFlags::EXCL),
        open,
        policy: hint(flags),
        alone,
        // The creation need not be durable yet: the next close or fsync of the file, or fsync of its directory, makes
        // it durable.
        unsynced: true,
        ..CreateOptions::default()
    };
    let mark = fs.coherence.directory_mark();
    let (file, after) = match mount.create_telling(&dir, name, options).await {
        // The name probably exists already: another client has created the file, and this caller may not read it. So
        // try to open the file only for writing.
        Err(error) if alone && error.is(Status::Access) => {
            let open = OpenFlags { read: false, ..options.open };
            mount.create_telling(&dir, name, CreateOptions { open, alone: false, ..options }).await?
        }
        outcome => outcome?,
    };
    // The file existed already, and the open has truncated it, so clear its setuid and setgid bits.
    if !file.is_unsynced()
        && file.attrs().mode & 0o6000 != 0
        && open_flags & abi::OPEN_KILL_SUIDGID != 0
        && options.open.truncate
    {
        Box::pin(fs.drop_privileges(header, &file.node())).await?;
    }
    fs.coherence.directory_changed(header.node, after, mark);
    // If another client created the file earlier, the kernel may have cached an inode of the file with an old size. So
    // the mount must not treat the file as new.
    let new = !fs.nodes.is_known(file.node().id.0);
    // Decide the use of the page cache before the mount builds a reply with attributes: if the kernel may write the
    // file through its page cache, these attributes get no lifetime.
    let admission = fs.admit(&file, flags, Found::created(new));
    let how = admission.how();
    let entry = fs.entry_made(Body::with_capacity(144), header, name, (&file.node(), &file.attrs()));
    fs.nodes.may_have_pages(file.node().id.0, how);
    fs.coherence.created(file.node().id.0, &admission);
    Ok(opened(entry, fs.add_file(file, flags, admission), how).reply())
}
