class ReadingStatements: pass
