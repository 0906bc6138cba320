//! GETDEVICEINFO: returns the address of a data server (RFC 8881 §18.40).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Refusal};
use bytes::Bytes;
use wire::nfs4::*;

/// Device notifications that the server promises (bits for changed and deleted devices). Clients cache a device address
/// only if the server promises both kinds of notification. A device id always means the same data server, so the server
/// never has to send such a notification.
const NOTIFICATIONS: u32 = 0b110;
/// Length in bytes of `device_addr4` without its body: type and length.
const FRAME: usize = 8;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: GETDEVICEINFO4args,
) -> Answer<GETDEVICEINFO4resok> {
    let kind = args.gdia_layout_type;
    if !cx.fs().layout_types().contains(&kind) {
        return Err(NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    let mut body = cx.fs().device_info(&cx.ctx, args.gdia_device_id, kind).await?;
    let needed = FRAME + body.len().next_multiple_of(4);
    if args.gdia_maxcount == 0 {
        body = Bytes::new();
    } else if needed > args.gdia_maxcount as usize {
        let needed = (needed as u32).to_be_bytes();
        return Err(Refusal { status: NFS4ERR_TOOSMALL, body: Bytes::copy_from_slice(&needed) });
    }
    let agreed = args.gdia_notify_types.first().map_or(0, |word| word & NOTIFICATIONS);
    Ok(GETDEVICEINFO4resok {
        gdir_device_addr: device_addr4 { da_layout_type: kind, da_addr_body: body },
        gdir_notification: if agreed == 0 { Vec::new() } else { vec![agreed] },
    })
}
