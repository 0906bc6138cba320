//! OPEN: opening a file that is there.

use crate::Errno;
use crate::abi;
use crate::fs::{Answer, FileSystem, hint, wanted};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::{File, Node, OpenFlags, OpenOptions};
use types::{Attrs, ByteRange, Status};

const ENOENT: Errno = Errno(2);
const ESTALE: Errno = Errno(116);

/// See the head of this file. What vanishes while it is opened, or has vanished since the kernel was told of its name, the kernel looks up once
/// more; if it has vanished then again ([`crate::vanishing`]), and there is no such name, that is what is said.
pub(crate) async fn open(fs: &FileSystem, header: &Header, flags: u32, open_flags: u32) -> Answer {
    let outcome = open_found(fs, header, flags, open_flags).await;
    if matches!(outcome, Err(Errno::MOVED | Errno::UNWALKED)) {
        return outcome;
    }
    if !matches!(outcome, Err(ESTALE)) {
        fs.vanishing.opened(header.pid);
        return outcome;
    }
    let Some((dir, name)) = fs.vanishing.gone(header.pid, header.node) else { return outcome };
    match fs.callers.anybody().lookup(&fs.nodes.get(dir)?, &name).await {
        Err(error) if error.is(Status::NoEnt) => Err(ENOENT),
        _ => outcome,
    }
}

/// The attributes that come with it are news for the kernel: what others did up to their closing
/// of the file is seen from here on.
async fn open_found(fs: &FileSystem, header: &Header, flags: u32, open_flags: u32) -> Answer {
    let node = fs.node(header)?;
    let dir = fs.nodes.dir_of(header.node);
    let named = !fs.vanishing.may_be_nameless(header.pid, header.node);
    let options = OpenOptions { flags: wanted(flags), dir: dir.as_ref(), policy: hint(flags), alone: false, named };
    let file = open_file(fs, header, &node, options, flags).await?;
    // Not before: who may not cut the file takes nothing from it.
    if file.attrs().mode & 0o6000 != 0 && open_flags & abi::OPEN_KILL_SUIDGID != 0 && options.flags.truncate {
        Box::pin(fs.drop_privileges(header, &node)).await?;
    }
    let attrs = file.attrs();
    fs.renew(header.node, &attrs);
    let changed = !fs.nodes.pages_are_of(header.node, &attrs);
    // Of a file that is cut the kernel knows the size, and has the inode locked.
    let sure = if options.flags.truncate {
        fs.changed_otherwise(header.node, ByteRange::ALL);
        fs.may_believe_more(header.node);
        fs.believes_surely(header.node, &Attrs { size: 0, ..attrs });
        true
    } else if fs.write_back.is_on() && file.is_alone() {
        fs.agree_surely(header.node, &attrs).await
    } else {
        fs.agree_whole(header.pid, header.node, &attrs).await;
        true
    };
    let (how, writing) = fs.how(&file, flags, (changed, sure));
    fs.nodes.may_have_pages(header.node, how);
    let handle = fs.opens.add_file(file, flags, (how, writing));
    // Whoever has written past the pages of the file since it was looked whose they are has not found it open.
    if fs.is_shared(header.node) {
        // What the kernel was told of it before was to hold for a while.
        fs.doubt_attributes(header.node);
    }
    let keeps = how & abi::fopen::KEEP_CACHE != 0 && !fs.nodes.is_written_past(header.node);
    let how = if keeps { how } else { how & !abi::fopen::KEEP_CACHE };
    Ok(opened(Body::with_capacity(16), handle, how).reply())
}

/// Opens the file, alone where that is of use. The kernel reads what it writes to its page cache, even for programs that only write: who may not
/// read the file writes past it.
async fn open_file(
    fs: &FileSystem,
    header: &Header,
    node: &Node,
    options: OpenOptions<'_>,
    flags: u32,
) -> client::Result<File> {
    let mount = fs.by_name(header);
    if fs.wants_alone(flags) {
        let both = OpenFlags { read: true, ..options.flags };
        match mount.open_with(node, OpenOptions { flags: both, alone: true, ..options }).await {
            Err(error) if error.is(Status::Access) && !options.flags.read => {}
            outcome => return outcome,
        }
    }
    mount.open_with(node, options).await
}
