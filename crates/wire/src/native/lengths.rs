//! LENGTHS: how long files are, which an iod asks the mgr where an object ends within what a client of the files layout reads.

use types::FileId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, LENGTHS_MAX};

/// Arguments of LENGTHS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LengthsArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// Answers to what the reply before asked.
    pub answers: Vec<Length>,
}

impl Xdr for LengthsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.array(&self.answers, |out, answer| answer.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsArgs { cap: Capability::decode(input)?, answers: input.array(LENGTHS_MAX, Length::decode)? })
    }
}

/// The answer to one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length {
    /// Number of the question.
    pub number: u64,
    /// What is so at a moment after the question was read; none when the mgr could not tell without asking iods.
    pub length: Option<FileLength>,
}

/// How long a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLength {
    /// In bytes.
    pub file: u64,
    /// How many bytes its object on the iod that asks must have: with fewer it has lost some.
    pub least: u64,
}

impl Xdr for Length {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.optional(self.length.as_ref(), |out, length| {
            out.u64(length.file);
            out.u64(length.least);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let number = input.u64()?;
        let length = input.optional(|input| Ok(FileLength { file: input.u64()?, least: input.u64()? }))?;
        Ok(Length { number, length })
    }
}

/// Result of LENGTHS; no question for a while is an answer too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LengthsReply {
    /// What is to be answered with the next LENGTHS.
    pub asked: Vec<LengthQuestion>,
}

impl Xdr for LengthsReply {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.asked, |out, question| question.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsReply { asked: input.array(LENGTHS_MAX, LengthQuestion::decode)? })
    }
}

/// One question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthQuestion {
    /// Its number, which no other question of this run of the iod has.
    pub number: u64,
    /// The object of the file.
    pub object: FileId,
}

impl Xdr for LengthQuestion {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.u64(self.object.0);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthQuestion { number: input.u64()?, object: FileId(input.u64()?) })
    }
}
