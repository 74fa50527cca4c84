class Context: pass
