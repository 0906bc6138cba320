//! CHECK: what `weir fsck` asks a mgr, page by page.

use super::{TEXT_MAX, put_text, take_text};
use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Most findings of one page.
pub const FINDINGS_MAX: usize = 64;
/// Most paths told of one finding.
pub const PATHS_MAX: usize = 8;
/// Longest path told in bytes; a longer one is cut.
pub const PATH_MAX: usize = 1024;

const _: () = assert!(FINDINGS_MAX * (PATHS_MAX * (PATH_MAX + 8) + 5 * TEXT_MAX) < types::limits::RECORD_MAX);

/// Arguments of CHECK.
///
/// A check runs at the mgr under a number. Each call asks for its next page; a page that did not arrive can be asked for
/// once more. A check that nobody asks for ends after a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckArgs {
    /// The check, as its first page told; 0 starts one.
    pub run: u64,
    /// The page wanted, from 0; only the last one told and the one after it can be had.
    pub page: u32,
    /// Whether what is found is to be repaired; counts when a check is started.
    pub repair: bool,
}

/// One page of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReply {
    /// What is asked cannot be done: no such check (any more), too many checks, or not for this user. The rest is empty.
    pub refused: Option<String>,
    /// The check.
    pub run: u64,
    /// Which page it is.
    pub page: u32,
    /// What was found since the last page.
    pub findings: Vec<Finding>,
    /// What the check is at: a word or two for people.
    pub phase: String,
    /// Records, files or objects looked at in this phase.
    pub done: u64,
    /// How many there are about; 0 when that is not known.
    pub total: u64,
    /// Whether this is the last page.
    pub end: bool,
    /// On the last page: why the check did not come to its end.
    pub broken_off: Option<String>,
    /// On the last page: things that were counted, by name.
    pub counts: Vec<(String, u64)>,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Severity {
    /// Something could not be looked at.
    Unchecked = 0,
    /// Something is inconsistent; no data are lost by it.
    Error = 1,
    /// Data or names may be lost.
    Loss = 2,
}

/// What became of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mended {
    /// Nothing was tried.
    No = 0,
    /// It was repaired.
    Yes = 1,
    /// It was to be repaired, but that needs a person or failed.
    Failed = 2,
}

/// Something that a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its code: a word that stays the same for ever.
    pub code: String,
    /// How bad it is.
    pub severity: Severity,
    /// The inode that it is about.
    pub inode: Option<u64>,
    /// Its paths, or that of the name that it is about.
    pub paths: Vec<Bytes>,
    /// The iod that it is about: its id.
    pub iod: Option<String>,
    /// The bytes of the file that it is about: first, and one past the last.
    pub range: Option<(u64, u64)>,
    /// What is wrong, for people.
    pub text: String,
    /// What repairing does about it.
    pub remedy: String,
    /// What became of it.
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
    fn bytes_are_these() {
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
    fn what_is_too_long_is_cut() {
        let mut long = reply();
        let path = Bytes::from(vec![b'x'; PATH_MAX + 1]);
        long.findings[0].paths = vec![path; PATHS_MAX + 1];
        long.findings = vec![long.findings[0].clone(); FINDINGS_MAX + 1];
        let read = CheckReply::from_bytes(&long.to_bytes()).unwrap();
        assert_eq!(read.findings.len(), FINDINGS_MAX);
        assert_eq!(read.findings[0].paths, vec![vec![b'x'; PATH_MAX]; PATHS_MAX]);
    }
}
