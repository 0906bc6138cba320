//! READDIR: returns entries of a directory with their attributes, as many as fit (RFC 8881 §18.23).

use crate::attrs::{self, Mask};
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use crate::state::State;
use crate::values::Values;
use types::{Attrs, DirEntry};
use wire::nfs4::*;
use xdr::{Segments, Writer};

/// Bytes of a reply besides entries: cookie verifier, the end of the list, `eof`.
const FRAME: usize = 16;
/// Largest number of entries requested from the file system at a time.
const PAGE: usize = 512;
/// The attributes of an entry that the caller may not access: only the error.
const CLOSED: Mask = Mask::of(&[FATTR4_RDATTR_ERROR]);
/// Smallest size of one entry: list mark, cookie, name of one byte, empty attributes.
const ENTRY_MIN: usize = 4 + 8 + 8 + 8;

/// The entries of a reply, encoded.
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

/// The entries encoded so far, and the two limits.
struct Page {
    list: Writer,
    names: usize,
    max: usize,
    max_names: usize,
}

impl Page {
    /// Appends an entry; returns `false` if it does not fit.
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

/// Corrects the used space of all entries with holes in one call, if there are any.
async fn correct_space<F: FileSystem, C: Callbacks>(cx: &Compound<'_, F, C>, entries: &mut [DirEntry]) {
    let attrs = entries.iter_mut().map(|entry| &mut entry.attrs);
    let mut with_holes: Vec<&mut Attrs> = attrs.filter(|attrs| attrs.holes).collect();
    if !with_holes.is_empty() {
        Box::pin(cx.fs().correct_space(&mut with_holes)).await;
    }
}

/// Returns for each entry whether another client may know newer attributes; empty unless the client asked for this. The
/// check comes after the attributes were read: if a client has returned its delegation by then, its size was stored
/// before.
fn written_elsewhere<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    mask: Mask,
    entries: &[DirEntry],
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
        let mut found = cx.fs().readdir(&cx.ctx, dir, after, hint.clamp(1, PAGE)).await?;
        if mask.has(FATTR4_SPACE_USED) {
            correct_space(cx, &mut found.entries).await;
        }
        let written = written_elsewhere(cx, mask, &found.entries);
        for (at, entry) in found.entries.iter().enumerate() {
            let told = cx.add_values(&mut values, mask, &entry.attrs);
            values.weir_writer = written.get(at).copied();
            // An entry that the caller may not see shows only its name (RFC 8881 §5.8.1.12, §18.23.3).
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
