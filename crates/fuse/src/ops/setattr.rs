//! SETATTR: changing attributes, the length among them.

use crate::Errno;
use crate::abi::fattr;
use crate::fs::{Answer, FileSystem};
use crate::request::{Header, SetAttr};
use types::{SetAttrs, SetTime, Timestamp};

const EINVAL: Errno = Errno(22);

/// See the head of this file.
pub(crate) async fn setattr(fs: &FileSystem, header: &Header, args: &SetAttr) -> Answer {
    let changes = changes(args)?;
    let _changing = fs.nodes.changing(header.node);
    let open = (args.valid & fattr::FH != 0).then(|| fs.opens.file(args.fh)).transpose()?;
    let attrs = match open {
        // What an open file was opened for holds, whatever the mode says by now.
        Some(open) if changes.size.is_some() => open.file.set_attrs(&changes).await?,
        _ => fs.acting(header).setattr(&fs.node(header)?, &changes).await?,
    };
    Ok(fs.attributes(header, &attrs))
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
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime)?,
    })
}
