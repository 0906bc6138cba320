//! CREATE: creates a directory, symbolic link, device node, socket or named pipe (RFC 8881 §18.4).

use crate::attrs;
use crate::fs::CreateKind;
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use types::limits::PATH_MAX;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: CREATE4args,
) -> Answer<CREATE4resok> {
    let dir = cx.file()?;
    let kind = match args.objtype {
        createtype4::NF4DIR => CreateKind::Directory,
        createtype4::NF4LNK(target) if target.is_empty() => return Err(NFS4ERR_INVAL.into()),
        createtype4::NF4LNK(target) if target.len() > PATH_MAX => return Err(NFS4ERR_NAMETOOLONG.into()),
        createtype4::NF4LNK(target) => CreateKind::Symlink(target),
        createtype4::NF4BLK(device) => CreateKind::Block(device.specdata1, device.specdata2),
        createtype4::NF4CHR(device) => CreateKind::Char(device.specdata1, device.specdata2),
        createtype4::NF4SOCK => CreateKind::Socket,
        createtype4::NF4FIFO => CreateKind::Fifo,
        createtype4::Default(_) => return Err(NFS4ERR_BADTYPE.into()),
    };
    let set = cx.to_set(&args.createattrs)?;
    if set.size.is_some() {
        return Err(NFS4ERR_INVAL.into());
    }
    cx.make_way_in(dir).await?;
    let created = cx.fs().create(&cx.ctx, dir, &args.objname, kind, set).await?;
    // The new directory may be the root of an export. If the caller may not see this export, the COMPOUND continues
    // without a current filehandle.
    match cx.fs().descend(&cx.ctx, created.attrs.id) {
        Ok(place) => cx.set_place(created.attrs.id, place),
        Err(_) => cx.current = None,
    }
    Ok(CREATE4resok { cinfo: change_info(created.change), attrset: attrs::set_mask(&set).to_bitmap() })
}
