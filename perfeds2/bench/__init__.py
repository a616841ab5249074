"""How fast is it, against what?"""
