//! GETATTR returns the attributes of a file; STATX does the same and adds the birth time.

use crate::abi::opcode;
use crate::fs::{Answer, FileSystem, told};
use crate::request::Header;
use std::time::Duration;

/// Executes GETATTR and STATX.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    let (coherence, number) = (&fs.coherence, header.node);
    if coherence.is_own_getattr(header.pid) {
        let attrs = fs.callers.anybody().getattr(&fs.node(header)?).await?;
        coherence.own_getattr_replied(header.pid, number, &attrs);
        return Ok(told(header, &attrs, Duration::ZERO));
    }
    let _asks = coherence.getattr_begins(number);
    let open = fh.and_then(|fh| fs.opens.file(fh).ok());
    let known = match &open {
        Some(open) => coherence.attributes_for_reading(number, open).await,
        None if header.opcode == opcode::STATX => coherence.getattr_repeated(number),
        None => None,
    };
    if let Some((attrs, valid)) = known {
        return Ok(told(header, &attrs, valid));
    }
    let before = coherence.before_getattr(number, open.as_deref()).await;
    let attrs = match (&open, coherence.directory_just_changed(number)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    coherence.after_getattr(header.pid, number, open.as_deref(), (before, &attrs)).await?;
    Ok(fs.attributes(header, &attrs))
}
