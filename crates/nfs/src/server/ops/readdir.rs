//! READDIR: returns as many directory entries with attributes as fit into the reply (RFC 8881 §18.23).

use crate::attrs::{self, Mask};
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use crate::state::State;
use crate::values::Values;
use types::{Attrs, DirEntry};
use wire::nfs4::*;
use xdr::{Segments, Writer};

/// Length in bytes of a READDIR result without the entries: cookie verifier, end of the list, `eof`.
const FRAME: usize = 16;
/// Largest number of entries that the server requests from the file system in one call.
const PAGE: usize = 512;
/// The attributes that the server returns for an entry that the caller may not see: only `rdattr_error`.
const CLOSED: Mask = Mask::of(&[FATTR4_RDATTR_ERROR]);
/// Smallest encoding of one entry in bytes: the flag that an entry follows, cookie, a name of one byte, no attributes.
const ENTRY_MIN: usize = 4 + 8 + 8 + 8;

/// The encoded entries of a READDIR reply.
pub(super) struct Entries {
    list: Segments,
    eof: bool,
}

impl Body for Entries {
    fn put(&self, out: &mut Writer) {
        out.u64(0);
        self.list.parts().iter().for_each(|part| out.raw(part));
        out.bool(false);
        out.bool(self.eof);
    }
}

/// The entries that READDIR has already encoded, with the limits `maxcount` and `dircount`.
struct Page {
    list: Writer,
    names: usize,
    max: usize,
    max_names: usize,
}

impl Page {
    /// Appends an entry and returns true. Returns false, without appending the entry, if the reply would exceed a
    /// limit.
    fn add(&mut self, entry: &DirEntry, mask: Mask, values: &Values) -> bool {
        let mut one = Writer::new();
        one.bool(true);
        one.u64(entry.cookie);
        one.opaque(&entry.name);
        let names = self.names + one.len();
        attrs::encode_into(mask, values, &mut one);
        let one = one.finish();
        let first = self.list.is_empty();
        if self.list.len() + one.len() > self.max || (!first && names > self.max_names) {
            return false;
        }
        one.parts().iter().for_each(|part| self.list.raw(part));
        self.names = names;
        true
    }
}

/// Corrects the attribute `space_used` of all entries whose files have holes, with one call of the file system.
async fn correct_space<F: FileSystem, C: Callbacks>(cx: &Compound<'_, F, C>, entries: &mut [DirEntry]) {
    let attrs = entries.iter_mut().map(|entry| &mut entry.attrs);
    let mut with_holes: Vec<&mut Attrs> = attrs.filter(|attrs| attrs.holes).collect();
    if !with_holes.is_empty() {
        Box::pin(cx.fs().correct_space(&mut with_holes)).await;
    }
}

/// Returns for each entry whether its size and times may be out of date because another client writes the file. Returns
/// an empty vector unless the client requested Weir's attribute for this (`FATTR4_WEIR_WRITER`).
///
/// Call this function after reading the attributes of the entries. `returned` is the server's count of returned or
/// revoked write delegations, from before the read. If the count has grown since then, a client may have changed a file
/// after the read and then returned its delegation, so the result is true for all entries.
fn written_elsewhere<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    mask: Mask,
    entries: &[DirEntry],
    returned: u64,
) -> Vec<bool> {
    if !mask.has(attrs::FATTR4_WEIR_WRITER) {
        return Vec::new();
    }
    let client = cx.client();
    let delegated = |state: &State, file| state.delegated_writer(file, client).is_some();
    let mut written: Vec<bool> = cx.state(|state| entries.iter().map(|e| delegated(state, e.attrs.id)).collect());
    for (entry, written) in entries.iter().zip(&mut written) {
        *written |= cx.fs().is_written_elsewhere(&cx.ctx, entry.attrs.id);
    }
    if cx.state(|state| state.returned_write_delegations()) != returned {
        written.fill(true);
    }
    written
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: READDIR4args,
) -> Answer<Entries> {
    let dir = cx.file()?;
    let mask = cx.asked(&args.attr_request)?;
    match args.cookie {
        1 | 2 => return Err(NFS4ERR_BAD_COOKIE.into()),
        0 => {}
        _ if args.cookieverf != [0; 8] => return Err(NFS4ERR_NOT_SAME.into()),
        _ => {}
    }
    let room = (args.maxcount as usize).min(cx.room);
    let max = room.checked_sub(FRAME).ok_or(NFS4ERR_TOOSMALL)?;
    let max_names = if args.dircount == 0 { usize::MAX } else { args.dircount as usize };
    let mut page = Page { list: Writer::new(), names: 0, max, max_names };
    let mut values = cx.common_values(mask).await?;
    let closed = Values { rdattr_error: Some(NFS4ERR_ACCESS), ..Values::default() };
    let mut after = args.cookie;
    let eof = 'fill: loop {
        let hint = (max - page.list.len()) / ENTRY_MIN;
        let returned = cx.state(|state| state.returned_write_delegations());
        let mut found = cx.fs().readdir(&cx.ctx, dir, after, hint.clamp(1, PAGE)).await?;
        if mask.has(FATTR4_SPACE_USED) {
            correct_space(cx, &mut found.entries).await;
        }
        let written = written_elsewhere(cx, mask, &found.entries, returned);
        for (at, entry) in found.entries.iter().enumerate() {
            let told = cx.add_values(&mut values, mask, &entry.attrs);
            values.weir_writer = written.get(at).copied();
            // For an entry that the caller may not see, return only the name and `rdattr_error` (RFC 8881 §5.8.1.12,
            // §18.23.3).
            let (mask, values) = if told.is_ok() { (mask, &values) } else { (mask.and(CLOSED), &closed) };
            if !page.add(entry, mask, values) {
                break 'fill false;
            }
            after = entry.cookie;
        }
        if found.eof || found.entries.is_empty() {
            break true;
        }
    };
    if page.list.is_empty() && !eof {
        return Err(NFS4ERR_TOOSMALL.into());
    }
    Ok(Entries { list: page.list.finish(), eof })
}
