//! CHECK: the request of `weir fsck` to a mgr. The mgr returns the findings page by page.

use super::{TEXT_MAX, put_text, take_text};
use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Maximum number of findings in one page.
pub const FINDINGS_MAX: usize = 64;
/// Maximum number of paths in one finding.
pub const PATHS_MAX: usize = 8;
/// Maximum length of a path in a finding, in bytes. The mgr truncates longer paths.
pub const PATH_MAX: usize = 1024;

const _: () = assert!(FINDINGS_MAX * (PATHS_MAX * (PATH_MAX + 8) + 5 * TEXT_MAX) < types::limits::RECORD_MAX);

/// Arguments of CHECK.
///
/// The mgr numbers its running checks. Each call requests the next page of findings of a check. If a reply was lost,
/// the client may request the same page a second time. The mgr aborts a check if no call for this check arrives for a
/// while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckArgs {
    /// Number of the check, which the client takes from the reply with the first page; 0 starts a new check.
    pub run: u64,
    /// The number of the page to return, counted from 0. The mgr keeps only the page that it sent last. So the client
    /// can request only that page again, or the next page.
    pub page: u32,
    /// Whether the mgr repairs the damage that it finds. The mgr ignores this field after the first page.
    pub repair: bool,
}

/// Result of CHECK: one page of findings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReply {
    /// Why the mgr refused the request; `None` if it accepted the request. For instance, the check has ended, too many
    /// checks are running, or the user lacks rights. After a refusal, all other fields are empty.
    pub refused: Option<String>,
    /// The number of the check, which the client sends in its next CHECK call.
    pub run: u64,
    /// The number of this page, counted from 0.
    pub page: u32,
    /// The findings that the check has made since the mgr returned the previous page.
    pub findings: Vec<Finding>,
    /// The phase that the check is in: a word or two for people.
    pub phase: String,
    /// Number of records, files or objects that the check has examined in this phase.
    pub done: u64,
    /// Approximate number of records, files or objects that this phase checks; 0 if the mgr does not know.
    pub total: u64,
    /// Whether this page is the last page of the check.
    pub end: bool,
    /// On the last page: why the mgr aborted the check. `None` if the check is complete.
    pub broken_off: Option<String>,
    /// On the last page: the totals of the check, as names and values.
    pub counts: Vec<(String, u64)>,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Severity {
    /// The check could not examine a file or an object.
    Unchecked = 0,
    /// The metadata are inconsistent, but no data are lost.
    Error = 1,
    /// Data or names may be lost.
    Loss = 2,
}

/// Whether the mgr has repaired the problem of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mended {
    /// The mgr did not try to repair the problem.
    No = 0,
    /// The mgr has repaired the problem.
    Yes = 1,
    /// The client requested a repair, but the repair of this problem failed or needs an administrator.
    Failed = 2,
}

/// A problem that a check has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The kind of problem: a word that later versions do not change.
    pub code: String,
    /// The severity of the problem.
    pub severity: Severity,
    /// Number of the inode with the problem; `None` if the problem is not about one inode.
    pub inode: Option<u64>,
    /// Paths of the inode, or the path of the name that has the problem.
    pub paths: Vec<Bytes>,
    /// Id of the iod with the problem; `None` if the problem is not about one iod.
    pub iod: Option<String>,
    /// The byte range of the file that has the problem: offset of its first byte, and offset after its last byte.
    pub range: Option<(u64, u64)>,
    /// Description of the problem, for people.
    pub text: String,
    /// Description of what a repair of the problem does, for people.
    pub remedy: String,
    /// Whether the mgr has repaired the problem.
    pub mended: Mended,
}

impl Xdr for CheckArgs {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.run);
        out.u32(self.page);
        out.bool(self.repair);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(CheckArgs { run: input.u64()?, page: input.u32()?, repair: input.bool()? })
    }
}

impl Xdr for CheckReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.refused.as_ref(), |out, text| put_text(out, text));
        out.u64(self.run);
        out.u32(self.page);
        out.array(&self.findings[..self.findings.len().min(FINDINGS_MAX)], |out, finding| finding.encode(out));
        put_text(out, &self.phase);
        out.u64(self.done);
        out.u64(self.total);
        out.bool(self.end);
        out.optional(self.broken_off.as_ref(), |out, text| put_text(out, text));
        out.array(&self.counts[..self.counts.len().min(super::VALUES_MAX)], |out, (name, value)| {
            put_text(out, name);
            out.u64(*value);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(CheckReply {
            refused: input.optional(take_text)?,
            run: input.u64()?,
            page: input.u32()?,
            findings: input.array(FINDINGS_MAX, Finding::decode)?,
            phase: take_text(input)?,
            done: input.u64()?,
            total: input.u64()?,
            end: input.bool()?,
            broken_off: input.optional(take_text)?,
            counts: input.array(super::VALUES_MAX, |input| Ok((take_text(input)?, input.u64()?)))?,
        })
    }
}

impl Xdr for Finding {
    fn encode(&self, out: &mut Writer) {
        put_text(out, &self.code);
        out.u32(self.severity as u32);
        out.optional(self.inode.as_ref(), |out, inode| out.u64(*inode));
        out.array(&self.paths[..self.paths.len().min(PATHS_MAX)], |out, path| {
            out.opaque(&path.slice(..path.len().min(PATH_MAX)));
        });
        out.optional(self.iod.as_ref(), |out, iod| put_text(out, iod));
        out.optional(self.range.as_ref(), |out, (from, to)| {
            out.u64(*from);
            out.u64(*to);
        });
        put_text(out, &self.text);
        put_text(out, &self.remedy);
        out.u32(self.mended as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let code = take_text(input)?;
        let severity = match input.u32()? {
            0 => Severity::Unchecked,
            1 => Severity::Error,
            2 => Severity::Loss,
            value => return Err(Malformed::BadValue { what: "severity of a finding", value }),
        };
        let inode = input.optional(Reader::u64)?;
        let paths = input.array(PATHS_MAX, |input| input.opaque(PATH_MAX))?;
        let iod = input.optional(take_text)?;
        let range = input.optional(|input| Ok((input.u64()?, input.u64()?)))?;
        let (text, remedy) = (take_text(input)?, take_text(input)?);
        let mended = match input.u32()? {
            0 => Mended::No,
            1 => Mended::Yes,
            2 => Mended::Failed,
            value => return Err(Malformed::BadValue { what: "what became of a finding", value }),
        };
        Ok(Finding { code, severity, inode, paths, iod, range, text, remedy, mended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> CheckReply {
        let finding = Finding {
            code: "c".into(),
            severity: Severity::Loss,
            inode: Some(5),
            paths: vec![Bytes::from_static(b"/a\xff")],
            iod: Some("i".into()),
            range: Some((1, 2)),
            text: "t".into(),
            remedy: "r".into(),
            mended: Mended::Failed,
        };
        CheckReply {
            refused: None,
            run: 7,
            page: 3,
            findings: vec![finding],
            phase: "p".into(),
            done: 8,
            total: 9,
            end: true,
            broken_off: Some("b".into()),
            counts: vec![("n".into(), 6)],
        }
    }

    #[test]
    fn messages_have_their_golden_bytes() {
        let text = |byte| [0, 0, 0, 1, byte, 0, 0, 0];
        let long = |n: u8| [0, 0, 0, 0, 0, 0, 0, n];
        let word = |n: u8| [0, 0, 0, n];
        let mut want = Vec::new();
        want.extend(word(0));
        want.extend(long(7));
        want.extend(word(3));
        want.extend(word(1));
        want.extend(text(b'c'));
        want.extend(word(2));
        want.extend(word(1));
        want.extend(long(5));
        want.extend([0, 0, 0, 1, 0, 0, 0, 3, b'/', b'a', 0xff, 0]);
        want.extend(word(1));
        want.extend(text(b'i'));
        want.extend(word(1));
        want.extend(long(1));
        want.extend(long(2));
        want.extend(text(b't'));
        want.extend(text(b'r'));
        want.extend(word(2));
        want.extend(text(b'p'));
        want.extend(long(8));
        want.extend(long(9));
        want.extend(word(1));
        want.extend(word(1));
        want.extend(text(b'b'));
        want.extend(word(1));
        want.extend(text(b'n'));
        want.extend(long(6));
        assert_eq!(reply().to_bytes(), want);
        assert_eq!(CheckReply::from_bytes(&want.clone().into()), Ok(reply()));
        for cut in 0..want.len() {
            assert!(CheckReply::from_bytes(&want[..cut].to_vec().into()).is_err(), "{cut} bytes");
        }
        let args = CheckArgs { run: 7, page: 3, repair: true };
        let want = [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 1];
        assert_eq!(args.to_bytes(), &want[..]);
        assert_eq!(CheckArgs::from_bytes(&want.to_vec().into()), Ok(args));
    }

    #[test]
    fn texts_that_are_too_long_are_truncated() {
        let mut long = reply();
        let path = Bytes::from(vec![b'x'; PATH_MAX + 1]);
        long.findings[0].paths = vec![path; PATHS_MAX + 1];
        long.findings = vec![long.findings[0].clone(); FINDINGS_MAX + 1];
        let read = CheckReply::from_bytes(&long.to_bytes()).unwrap();
        assert_eq!(read.findings.len(), FINDINGS_MAX);
        assert_eq!(read.findings[0].paths, vec![vec![b'x'; PATH_MAX]; PATHS_MAX]);
    }
}
