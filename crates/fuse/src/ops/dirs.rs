//! OPENDIR, READDIR, READDIRPLUS and RELEASEDIR: list directories.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::opens::Reading;
use crate::reply::{Body, Entries, Reply, opened};
use crate::request::Header;
use types::FileKind;

/// Offsets after `.` and `..`. Offsets of entries are larger, because RFC 8881 §18.23.3 keeps cookies 0 to 2 free.
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

/// Executes OPENDIR. If the mgr has to check the path of the directory, the same request also fetches the first page of
/// entries, which the program probably needs next. OPENDIR succeeds even if the caller may not read the directory:
/// READDIR then fails.
pub(crate) async fn open(fs: &FileSystem, header: &Header) -> Answer {
    let mut reading = Reading::default();
    let (mount, node) = (fs.by_name(header), fs.node(header)?);
    if mount.expects(&node) {
        let asked = Some(fs.coherence.attributes_requested());
        let mut pages = mount.readdir(&node);
        match pages.next_page().await {
            Ok(page) => {
                let (pages, ahead) = (Some(pages), page.unwrap_or_default().into());
                reading = Reading { pages, ahead, at: 0, asked, unasked: true };
            }
            Err(error) if error.is_moved() => return Err(Errno::from(error)),
            // Ignore the error of the first page of entries, so that OPENDIR succeeds: READDIR requests this page
            // again, and then reports the error.
            Err(error) => tracing::debug!("cannot read a directory ahead: {error}"),
        }
    }
    Ok(opened(Body::with_capacity(16), fs.opens.add_dir(reading), 0).reply())
}

/// Executes RELEASEDIR: closes a directory.
pub(crate) fn release(fs: &FileSystem, fh: u64) -> Answer {
    fs.opens.take_dir(fh);
    Ok(Reply::Done)
}

/// Executes READDIR and READDIRPLUS: returns entries from `offset` on in at most `size` bytes. With `plus`, the
/// kernel also receives attributes.
pub(crate) async fn read(fs: &FileSystem, header: &Header, fh: u64, (offset, size): (u64, u32), plus: bool) -> Answer {
    let (open, dir) = (fs.opens.dir(fh)?, fs.node(header)?);
    let mut reading = open.reading.lock().await;
    let mut entries = Entries::new((size as usize).min(types::limits::PAYLOAD_MAX));
    let (asked_for, mut offset) = (offset, offset);
    for (name, after) in [(&b"."[..], AFTER_DOT), (b"..", AFTER_DOTDOT)] {
        if offset < after {
            // The kernel ignores the attributes of `.` and `..`, so send zeros.
            let unknown = plus.then_some(|body: Body| body.zeros(128));
            if !entries.push((name, dir.id.0, FileKind::Directory), after, unknown) {
                return Ok(entries.reply());
            }
            offset = after;
        }
    }
    let cookie = if offset == AFTER_DOTDOT { 0 } else { offset };
    // The page that OPENDIR fetched is valid only for one listing from the beginning, shortly after the open. Any other
    // listing from the beginning requests a new page.
    let unasked = std::mem::take(&mut reading.unasked);
    let begins = asked_for == 0 && !(unasked && reading.asked.is_some_and(|asked| fs.coherence.are_current(asked)));
    if reading.pages.is_none() || reading.at != cookie || begins {
        let pages = Some(fs.acting(header).readdir_from(&dir, cookie));
        *reading = Reading { pages, at: cookie, ..Reading::default() };
    }
    let Reading { pages, ahead, at, asked, .. } = &mut *reading;
    loop {
        while let Some(entry) = ahead.front() {
            let what = (&entry.name[..], entry.node.id.0, entry.attrs.kind);
            let known = plus.then_some(|body| fs.entry_listed(body, header, entry, *asked));
            if !entries.push(what, entry.cookie, known) {
                return Ok(entries.reply());
            }
            *at = entry.cookie;
            ahead.pop_front();
        }
        // Reply with the entries that are already fetched, before the mount requests the next page from the mgr.
        if !entries.is_empty() && *at != cookie {
            return Ok(entries.reply());
        }
        let Some(pages) = pages else { return Ok(entries.reply()) };
        *asked = Some(fs.coherence.attributes_requested());
        match pages.next_page().await? {
            Some(page) => ahead.extend(page),
            None => return Ok(entries.reply()),
        }
    }
}
